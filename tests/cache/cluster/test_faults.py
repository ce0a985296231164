"""Workers that are killed, stopped, drained or added in mid-read: right bytes, and what it costs."""

from __future__ import annotations

import threading
import time

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Version
from tests.cache.cluster.etcd_server import EtcdServer, free_port
from tests.cache.cluster.nodes import Nodes, fetch
from tests.waiting import await_that

pytestmark = pytest.mark.integration

MIB = PAGE_BYTES
TIMEOUT_S = 2.0
"""So long that a worker on a busy machine answers in time."""
PATIENT_S = 8.0
OBJECTS = 24


class Reading:
    """A thread that reads page after page over many objects, checks every byte, and notes how long each read took."""

    def __init__(self, client: PeerClient, objects: list[tuple[ObjectName, Version, bytes]]) -> None:
        self._client = client
        self._objects = objects
        self._stop = threading.Event()
        self.took_s: list[float] = []
        self.refused = 0
        self.wrong = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._stop.is_set():
            name, version, data = self._objects[turn % len(self._objects)]
            turn += 1
            started = time.monotonic()
            (came,), (found,) = fetch(self._client, name, version, [(100, len(data) - 100)])
            self.took_s.append(time.monotonic() - started)
            self.refused += not came
            self.wrong += came and found != data[100:-100]

    def more(self, count: int) -> None:
        """Waits for so many reads more."""
        enough = len(self.took_s) + count
        await_that("so many reads", lambda: len(self.took_s) >= enough or not self._thread.is_alive(), 40)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self.wrong == 0


def objects_of(nodes: Nodes) -> list[tuple[ObjectName, Version, bytes]]:
    return [nodes.file(f"object-{number}", 300_000, seed=number) for number in range(OBJECTS)]


def owner_of(client: PeerClient, name: ObjectName) -> str:
    ring = client._current()
    assert ring is not None
    return ring.owners(name, 0)[0]


def test_a_killed_worker_costs_no_read_and_no_time_out(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(3), timeout_s=PATIENT_S)
    objects = objects_of(nodes)
    reading = Reading(client, objects)
    reading.more(2 * OBJECTS)
    victim = owner_of(client, objects[0][0])
    nodes.kill(victim)
    reading.more(3 * OBJECTS)
    assert client.lost() == [victim]
    nodes.relaunch(victim)
    nodes.wait(victim)
    await_that("none counts as lost", lambda: not client.lost())  # probes found it, no read did
    reading.more(OBJECTS)
    reading.end()
    assert reading.refused == 0
    assert max(reading.took_s) < PATIENT_S


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_a_stopped_worker_costs_one_time_out_once(nodes: Nodes, unix: bool) -> None:
    client = nodes.client(nodes.start_static(3, unix=unix), timeout_s=TIMEOUT_S, mapped=False)
    objects = objects_of(nodes)
    reading = Reading(client, objects)
    reading.more(OBJECTS)
    victim = owner_of(client, objects[0][0])
    nodes.stop(victim)
    before = len(reading.took_s)
    reading.more(4 * OBJECTS)
    assert client.lost() == [victim]
    assert client.counts.found_lost == 1
    assert len([took_s for took_s in reading.took_s[before:] if took_s > 0.9 * TIMEOUT_S]) == 1
    nodes.go_on(victim)
    await_that("none counts as lost", lambda: not client.lost())
    reading.end()
    assert reading.refused == 0


def test_with_all_workers_gone_reads_go_to_the_store_within_its_budget(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2), isolated_per_s=10.0, store_per_s=10.0, wait_s=0.1)
    objects = objects_of(nodes)
    assert fetch(client, objects[0][0], objects[0][1], [(0, 10)])[0] == [True]
    for node in list(nodes.plans):
        nodes.kill(node)
    started = time.monotonic()
    for name, version, _ in objects[:2] * 10:
        assert fetch(client, name, version, [(0, 10)])[0] == [False]
    took_s = time.monotonic() - started
    assert client.counts.lost == 20
    assert 0.1 < client.counts.waited_s <= 20 * 0.1  # 10 at once, then a wait each, never longer than `wait_s`
    assert took_s >= client.counts.waited_s


def test_a_hedge_is_answered_by_a_replica_that_holds_the_page(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2), timeout_s=TIMEOUT_S)
    name, version, data = nodes.file("object", 4096)
    owner = owner_of(client, name)
    nodes.stop(owner)
    assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])  # the successor fetches and holds it
    nodes.go_on(owner)
    await_that("none counts as lost", lambda: not client.lost())
    for _ in range(300):
        assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])
    asked = client.hedges
    nodes.stop(owner)
    started = time.monotonic()
    assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])
    assert client.hedges == asked + 1
    for _ in range(20):  # nothing has come of the owner's answer: the replica is asked at once
        assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])
    assert time.monotonic() - started < TIMEOUT_S / 2
    assert (client.hedges, client.lost()) == (asked + 1, [])
    nodes.go_on(owner)
    await_that("the owner is asked again", lambda: fetch(client, name, version, [(0, 4096)])[0] and not client.silent())
    assert (client.counts.missed, client.counts.found_lost) == (0, 1)


def test_a_worker_that_lost_a_race_and_stays_silent_is_lost(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2), timeout_s=TIMEOUT_S)
    name, version, data = nodes.file("object", 4096)
    owner = owner_of(client, name)
    record = client.record
    assert record is not None
    for member in record.members:
        client.hold(member, name, version, [0])
    for _ in range(300):
        assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])
    nodes.stop(owner)

    def is_lost() -> bool:
        assert fetch(client, name, version, [(0, 4096)]) == ([True], [data])
        return client.lost() == [owner]

    await_that("it is lost", is_lost)
    nodes.go_on(owner)


def test_draining_and_joining_move_pages_between_workers_and_not_from_the_store(nodes: Nodes) -> None:
    join = f"file://{nodes.folder}/ring.json"
    for node in ("a", "b"):
        nodes.launch(node, join, (f"tcp://127.0.0.1:{free_port()}",))
        nodes.wait(node)
    client = nodes.client(join, timeout_s=PATIENT_S)
    objects = objects_of(nodes)
    reading = Reading(client, objects)
    reading.more(2 * OBJECTS)
    nodes.launch("c", join, (f"tcp://127.0.0.1:{free_port()}",))
    nodes.wait("c")
    await_that("the third epoch", lambda: client.epoch >= 3)  # learned from replies: this client watches nothing
    reading.more(2 * OBJECTS)
    owned = {name.path: owner_of(client, name) for name, _, _ in objects}
    assert set(owned.values()) == {"a", "b", "c"}
    assert nodes.end("a")
    await_that("the fourth epoch", lambda: client.epoch >= 4)
    reading.more(2 * OBJECTS)
    reading.end()
    assert reading.refused == 0
    assert max(reading.took_s) < PATIENT_S
    again = {line.split()[0] for line, count in nodes.store_reads().items() if count > 1}
    # What moved to `c` came from `a` and `b`; only what `a` took with it may have been read again. A worker that is
    # too busy to answer in time is not waited for.
    assert len([path for path in again if owned[path] != "a"]) <= 1
    assert client.lost() == []


def test_etcd_dies_and_a_worker_dies_while_reads_go_on(nodes: Nodes, etcd: EtcdServer) -> None:
    join = f"etcd://{etcd.endpoint}/test"
    for node in ("a", "b", "c"):
        nodes.launch(node, join, (f"tcp://127.0.0.1:{free_port()}",), state_dir=str(nodes.folder / f"state-{node}"))
    for node in ("a", "b", "c"):
        nodes.wait(node)
    client = nodes.client(join, timeout_s=PATIENT_S, state_dir=nodes.folder / "state")
    objects = objects_of(nodes)
    reading = Reading(client, objects)
    reading.more(OBJECTS)
    etcd.kill()
    reading.more(2 * OBJECTS)
    nodes.kill("b")
    reading.more(3 * OBJECTS)
    late = nodes.client(join, timeout_s=PATIENT_S, state_dir=nodes.folder / "state")  # knows the ring from the disk
    assert fetch(late, *objects[0][:2], [(0, 1000)]) == ([True], [objects[0][2][:1000]])
    reading.end()
    assert reading.refused == 0
    assert max(reading.took_s) < PATIENT_S
