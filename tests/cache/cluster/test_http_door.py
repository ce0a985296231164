"""The HTTP door: ranges as HTTP has them, a token, the Host header, metrics that Prometheus reads."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from stoker.cache.cluster.server.http_door import Door, DoorMount, DoorSettings, range_of
from stoker.cache.cluster.server.metrics import metrics_of
from stoker.core.errors import ConfigError
from tests.cache.cluster.nodes import Nodes
from tests.cache.cluster.worker_program import FILES

TOKEN = "a-token-for-tests-only"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (0, 100)),
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=50-1000", (50, 100)),
        ("bytes=100-", None),
        ("bytes=9-5", None),
        ("bytes=-0", None),
        ("bytes=0-1,5-6", (0, 100)),  # several: the whole object is a right answer
        ("lines=1-2", (0, 100)),
        ("bytes=-", (0, 100)),
    ],
)
def test_range_headers(header: str | None, expected: tuple[int, int] | None) -> None:
    assert range_of(header, 100) == expected


@given(st.none() | st.text(max_size=30) | st.from_regex(r"bytes=\d*-\d*", fullmatch=True), st.integers(0, 2**62))
def test_any_range_header_stays_within_the_object(header: str | None, size: int) -> None:
    found = range_of(header, size)
    assert found is None or 0 <= found[0] <= found[1] <= size


def test_metrics_are_in_the_format_of_prometheus() -> None:
    text, kind = metrics_of({"hits": 3, "epoch": 2, "draining": False, "node": "a", "uptime_s": 1.5})
    assert kind.startswith("text/plain; version=")
    found = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert found["stoker_cache_hits"].type == "counter"
    values = {sample.name: sample.value for family in found.values() for sample in family.samples}
    assert values == {
        "stoker_cache_hits_total": 3, "stoker_cache_epoch": 2, "stoker_cache_draining": 0,
        "stoker_cache_uptime_seconds": 1.5,
    }  # fmt: skip


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="token"):
        DoorSettings(token="short")
    assert TOKEN not in repr(DoorSettings(token=TOKEN))


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]


class Asking:
    """What curl would ask."""

    def __init__(self, address: str, folder: str) -> None:
        self.address = address
        self.folder = folder

    def get(self, path: str, *, method: str = "GET", token: str | None = TOKEN, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=20)
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request(method, path, headers={**authorization, **headers})
        response = connection.getresponse()
        answer = Answer(response.status, response.read(), dict(response.getheaders()))
        connection.close()
        return answer


@pytest.fixture
def asking(nodes: Nodes) -> Iterator[Asking]:
    client = nodes.client(nodes.start_static(1))
    (node,) = nodes.plans
    settings = DoorSettings(token=TOKEN, hosts=("cache.example",), mounts={"files": DoorMount(FILES.namespace, "/")})
    door = Door(settings, client, lambda: client.status(node))
    door.start()
    yield Asking(door.address, str(nodes.folder))
    door.close()


@pytest.mark.integration
def test_objects_come_whole_and_in_ranges(nodes: Nodes, asking: Asking) -> None:
    _, _, data = nodes.file("object", 2_500_000)
    nodes.file("empty", 0)
    url = f"/files{asking.folder}/object"
    whole = asking.get(url)
    assert (whole.status, whole.body) == (200, data)
    part = asking.get(url, Range="bytes=1048570-1048589")
    assert (part.status, part.body) == (206, data[1048570:1048590])
    assert part.headers["Content-Range"] == "bytes 1048570-1048589/2500000"
    head = asking.get(url, method="HEAD")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "2500000")
    assert asking.get(url, Range="bytes=9999999-").status == 416
    assert asking.get(f"/files{asking.folder}/empty").body == b""
    assert asking.get(f"/files{asking.folder}/empty").status == 200


@pytest.mark.integration
def test_nothing_else_is_given_out(nodes: Nodes, asking: Asking) -> None:
    nodes.file("object", 100)
    url = f"/files{asking.folder}/object"
    assert asking.get(url, token=None).status == 401
    assert asking.get(url, token="a-token-for-tests-onlx").status == 401
    assert asking.get("/metrics", token=None).status == 401
    assert asking.get(url, Host="evil.example").status == 421
    assert asking.get(url, Host="cache.example:8080").status == 200
    for path in ("/", "/files", "/files/", f"/files{asking.folder}/", f"/files{asking.folder}", "/other/x", f"{url}x"):
        assert asking.get(path).status == 404, path
    assert asking.get(f"/files{asking.folder}/sub/../object").status == 404
    assert asking.get(url, method="PUT").status == 501


@pytest.mark.integration
def test_health_and_metrics_tell_of_the_worker(nodes: Nodes, asking: Asking) -> None:
    assert asking.get("/healthz", token=None).status == 200
    metrics = asking.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain; version=")
    assert b"stoker_cache_members 1.0\n" in metrics.body
    (node,) = nodes.plans
    nodes.kill(node)
    assert asking.get("/healthz", token=None).status == 503
    assert asking.get("/metrics").status == 503
