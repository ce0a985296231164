"""A worker that leaves hands its pinned pages over; pages move through changes of the ring without the store."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.range_request import PartState
from stoker.cache.cluster.membership.ring import HashRing
from stoker.cache.cluster.messages.frames import Flag
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.policies import PageLife, Rule
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version
from tests.cache.cluster.etcd_server import free_port
from tests.cache.cluster.nodes import Nodes, fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

OBJECTS = 24


def pages_of(started: Started, node: str) -> PageStore:
    return PageStore(started.directory(node), StoreSettings(limit_bytes=64 << 20, rules=(Rule(),)))


def pinned(started: Started, node: str) -> int:
    with pages_of(started, node) as pages:
        return pages.stats().pinned.pages


def until_known(client: PeerClient, nodes: Iterable[str]) -> None:
    """Waits until each worker knows all: they look at a ring's file once a second."""
    members = len(list(nodes))
    await_that(
        "each worker knows all", lambda: all((client.status(node) or {}).get("members") == members for node in nodes)
    )


@pytest.mark.parametrize("kind", ["static", "file"])
def test_pinned_pages_are_with_their_next_owners_when_a_worker_has_left(
    started: Started, tmp_path: Path, kind: str
) -> None:
    nodes, join = started.nodes(2)
    if kind == "file":
        join = f"file://{tmp_path}/ring.json"
    for node in nodes:
        started.start(node, join, "--node", node)
    for node in nodes:
        started.wait(node)
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / str(number) for number in range(OBJECTS)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * (3 * PAGE_BYTES // 2))
    with pages_of(started, nodes[0]) as pages:
        pages.pin(ObjectName(FILES.namespace, f"{folder}/"))
    client = started.client(join)
    until_known(client, nodes)
    names = [ObjectName(FILES.namespace, str(path)) for path in paths]
    versions: list[Version] = []
    for name in names:
        found = client.stat(name)
        assert found is not None
        versions.append(found.version)
    wanted = [path.read_bytes() for path in paths]
    for name, version, data in zip(names, versions, wanted, strict=True):
        assert fetch(client, name, version, [(0, len(data))]) == ([True], [data])
    num_pinned = pinned(started, nodes[0])
    assert num_pinned > 0
    for path in paths:
        path.unlink()
    said = started.end(nodes[0])
    assert f"handed over {num_pinned} of {num_pinned} pinned pages" in said
    assert pinned(started, nodes[1]) == num_pinned
    for name, version, data in zip(names, versions, wanted, strict=True):
        assert fetch(client, name, version, [(0, len(data))]) == ([True], [data])


def test_pages_that_nobody_takes_are_counted(started: Started, tmp_path: Path) -> None:
    (node,), join = started.start_all(1)
    path = tmp_path / "object"
    path.write_bytes(bytes(1000))
    with pages_of(started, node) as pages:
        pages.pin(ObjectName(FILES.namespace, f"{tmp_path}/"))
    client = started.client(join)
    assert fetch(client, ObjectName(FILES.namespace, str(path)), None, [(0, 1000)])[0] == [True]
    assert "handed over 0 of 1 pinned page" in started.end(node)


def test_programs_may_not_pin(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(1))
    name, version, _ = nodes.file("object", 1000)
    record = client.record
    assert record is not None
    asked = [client.hold(record.members[0], name, version, [0], flag)[0].state for flag in (Flag.NONE, Flag.PIN)]
    assert asked == [PartState.DONE, PartState.MISSED]


def test_workers_that_join_one_after_another_take_pages_from_their_first_owner(nodes: Nodes) -> None:
    join = f"file://{nodes.folder}/ring.json"
    nodes.launch("a", join, (f"tcp://127.0.0.1:{free_port()}",))
    nodes.wait("a")
    objects = [nodes.file(f"object-{number}", 5000, seed=number) for number in range(40)]
    client = nodes.client(join)
    for name, version, data in objects:
        assert fetch(client, name, version, [(0, 5000)]) == ([True], [data])
    for node in ("b", "c", "d"):
        nodes.launch(node, join, (f"tcp://127.0.0.1:{free_port()}",))
        nodes.wait(node)
    late = nodes.client(join)
    assert late.record is not None
    until_known(late, "abcd")
    assert {HashRing(late.record).owners(name, 0)[0] for name, _, _ in objects} == set("abcd")
    for name, version, data in objects:
        assert fetch(late, name, version, [(0, 5000)]) == ([True], [data])
    assert max(nodes.store_reads().values()) == 1


def test_what_a_successor_serves_for_a_lost_worker_goes_first(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2))
    record = client.record
    assert record is not None
    lost, successor = (member.id for member in record.members)
    objects = [nodes.file(f"object-{number}", 5000, seed=number) for number in range(20)]
    nodes.kill(lost)
    for name, version, data in objects:
        assert fetch(client, name, version, [(0, 5000)]) == ([True], [data])
    with PageStore(Path(nodes.plans[successor].directory), StoreSettings(limit_bytes=1 << 30)) as pages:
        lives = {held.name.path: held.life for held in pages.names()}
    owners = {name.path: HashRing(record).owners(name, 0)[0] for name, _, _ in objects}
    assert set(owners.values()) == {lost, successor}
    assert lives == {path: PageLife.NORMAL if owner == successor else PageLife.COPY for path, owner in owners.items()}


def test_a_worker_that_takes_nothing_does_not_keep_another_from_leaving(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2, drain_s=1.0))
    record = client.record
    assert record is not None
    leaving, stopped = (member.id for member in record.members)
    with PageStore(Path(nodes.plans[leaving].directory), StoreSettings(limit_bytes=1 << 30)) as pages:
        pages.pin(ObjectName(FILES.namespace, str(nodes.folder)))
    for number in range(10):
        name, version, _ = nodes.file(f"object-{number}", 5000, seed=number)
        assert fetch(client, name, version, [(0, 5000)])[0] == [True]
    nodes.stop(stopped)
    began_s = time.monotonic()
    assert not nodes.end(leaving)
    assert time.monotonic() - began_s < 10
    nodes.go_on(stopped)


def test_a_signal_that_comes_to_any_thread_ends_a_worker(nodes: Nodes) -> None:
    nodes.start_static(1)
    (node,) = nodes.plans
    process = nodes.processes[node]
    assert process.pid is not None
    other = next(int(thread) for thread in os.listdir(f"/proc/{process.pid}/task") if int(thread) != process.pid)
    assert ctypes.CDLL(None).tgkill(process.pid, other, signal.SIGTERM) == 0
    process.join(20)
    assert process.exitcode == 0
