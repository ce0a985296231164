"""What workers did in the last seconds, as they say it and as `status --join` shows it."""

from __future__ import annotations

import json
import time

import pytest

from stoker.cache.cluster.server.recent_rates import WINDOW_S, Done, RecentRates
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.sources.opening import open_source
from tests.cache.cluster.nodes import Nodes, fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

SIZE = 12 * PAGE_BYTES
SHOWN = ("hits", "sent", "from stores", "from nodes")


def test_rates_are_of_the_window_whatever_was_before() -> None:
    lately = RecentRates()
    for second in range(100):
        busy = min(second, 50)  # 1 MB a second, and nothing any more after 50 seconds
        lately.note(float(second), Done(3 * busy, busy, busy * 1_000_000, 0, 0))
        told = lately.rates(second + 0.5, Done(3 * busy, busy, busy * 1_000_000, 0, 0))
        if 20 <= second <= 50:
            assert told["over_s"] == WINDOW_S + 0.5
            assert told["hit_ratio"] == 0.75
            assert told["sent_bytes_per_s"] == pytest.approx(1e6 * WINDOW_S / (WINDOW_S + 0.5))
    assert (told["hit_ratio"], told["sent_bytes_per_s"]) == (None, 0.0)


def test_the_first_answer_of_a_worker_divides_by_no_time() -> None:
    assert RecentRates().rates(7.0, Done(1, 1, 5, 5, 5))["sent_bytes_per_s"] == 0.0
    lately = RecentRates()
    lately.note(7.0, Done(0, 0, 0, 0, 0))
    assert lately.rates(7.0, Done(1, 1, 5, 5, 5))["fetched_bytes_per_s"] == 0.0


@pytest.mark.integration
def test_status_tells_the_rates_of_every_node_at_once(started: Started) -> None:
    nodes, join = started.start_all(2)
    words = ("status", "--join", join, "--secret-file", str(started.secret))
    assert "Idle for the last" in started.command(*words).stdout
    path = started.folder / "object"
    path.write_bytes(bytes(SIZE))
    version = open_source(FILES).info(str(path)).version
    client = started.client(join, mapped=False)
    for _ in range(4):
        assert fetch(client, ObjectName(FILES.namespace, str(path)), version, [(0, SIZE)])[0] == [True]
    began = time.monotonic()
    told = {each["node"]: each["status"] for each in json.loads(started.command(*words, "--json").stdout)["nodes"]}
    assert time.monotonic() - began < WINDOW_S  # it does not wait for its window
    assert told.keys() == set(nodes)
    lately = [each["lately"] for each in told.values()]
    sent, fetched = (
        sum(each[f"{name}_bytes_per_s"] * each["over_s"] for each in lately) for name in ("sent", "fetched")
    )
    assert (round(sent), round(fetched)) == (4 * SIZE, SIZE)
    assert [each["hit_ratio"] for each in lately if each["hit_ratio"] is not None] == [pytest.approx(0.75, abs=0.05)]
    shown = started.command(*words).stdout
    last = shown[shown.index("In the last ") :]
    assert all(heading in last for heading in SHOWN)
    assert last.count("iB/s") >= 2
    assert last.count(" % ") == 1


@pytest.mark.integration
def test_what_programs_map_is_in_a_nodes_hits(nodes: Nodes) -> None:
    """Otherwise a worker whose programs are on its own machine looks as if it were of no use."""
    join = nodes.start_static(1, unix=True)
    (node,) = nodes.processes
    name, version, data = nodes.file("object", SIZE)
    client = nodes.client(join)
    for _ in range(20):
        assert fetch(client, name, version, [(0, SIZE)]) == ([True], [data])
    client.close()
    status = nodes.client(join).status(node)
    assert status is not None
    assert status["sent_bytes"] == SIZE
    assert status["found"] >= 18 * SIZE // PAGE_BYTES
    assert status["lately"]["hit_ratio"] > 0.9
