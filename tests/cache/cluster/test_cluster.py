"""Workers and clients as processes: right bytes, one fetch for all, and who may read what."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Strength, Version
from tests.cache.cluster.nodes import Nodes, fetch, ranges_of

pytestmark = pytest.mark.integration

MIB = PAGE_BYTES


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_cold_and_warm_reads_give_the_stores_bytes(nodes: Nodes, unix: bool) -> None:
    join = nodes.start_static(3, unix=unix)
    client = nodes.client(join)
    name, version, data = nodes.file("object", 5 * MIB + 12345)
    for step in (MIB, 4096 * 33, 5 * MIB + 12345):
        ranges = ranges_of(len(data), step)
        came, buffers = fetch(client, name, version, ranges)
        assert all(came)
        assert b"".join(buffers) == data
    assert max(nodes.store_reads().values()) == 1
    assert sum(nodes.store_reads().values()) == 6


def test_an_object_of_several_owners_comes_in_one_call(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(3))
    name, version, data = nodes.file("large", 66 * MIB + 5)  # two chunks
    ranges = [(64 * MIB - 9, 65 * MIB), (0, 10), (7, 7), (66 * MIB, 66 * MIB + 5), (10 * MIB - 7, 11 * MIB)]
    came, buffers = fetch(client, name, version, ranges)
    assert came == [True] * 5
    assert buffers == [data[start:end] for start, end in ranges]


def test_many_small_ranges_are_one_request(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(1))
    name, version, data = nodes.file("object", 3 * MIB)
    ranges = [(start, start + 700) for start in range(0, 3 * MIB - 700, 1000)]
    came, buffers = fetch(client, name, version, ranges)
    assert all(came), client.counts
    assert buffers == [data[start:end] for start, end in ranges]
    assert sum(nodes.store_reads().values()) == 3


def test_one_fetch_for_all_who_ask_however_long_it_takes(nodes: Nodes) -> None:
    join = nodes.start_static(2, delay_s=1.0)  # longer than the silence after which a worker counts as lost
    name, version, data = nodes.file("object", 4 * MIB)
    clients = [nodes.client(join, timeout_s=0.6) for _ in range(3)]
    with ThreadPoolExecutor(9) as pool:
        results = list(
            pool.map(lambda turn: fetch(clients[turn % 3], name, version, ranges_of(4 * MIB, MIB)), range(9))
        )
    assert all(came == [True] * 4 and b"".join(buffers) == data for came, buffers in results)
    assert nodes.store_reads() == {f"{name.path} {start} {end}": 1 for start, end in ranges_of(4 * MIB, MIB)}


def test_a_changed_object_is_not_served_as_the_old_version(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2))
    name, old, data = nodes.file("object", 2 * MIB)
    assert fetch(client, name, old, [(0, MIB)])[1] == [data[:MIB]]
    _, new, changed = nodes.file("object", 2 * MIB, seed=1)
    assert fetch(client, name, old, [(MIB, 2 * MIB)])[0] == [False]
    assert fetch(client, name, old, [(0, MIB)])[1] == [data[:MIB]]  # proven to be of the version that is asked for
    assert fetch(client, name, new, [(0, 2 * MIB)]) == ([True], [changed])
    assert fetch(client, name, None, [(0, 2 * MIB)]) == ([True], [changed])
    assert fetch(client, name, new, [(2 * MIB - 5, 2 * MIB + 5)])[0] == [False]


def test_what_is_not_there_or_not_mounted_is_left_to_the_caller(nodes: Nodes, tmp_path: Path) -> None:
    client = nodes.client(nodes.start_static(2))
    name, version, _ = nodes.file("object", MIB)
    elsewhere = ObjectName("s3||", name.path)
    missing = ObjectName(name.namespace, str(tmp_path / "missing"))
    for _ in range(2):
        assert fetch(client, elsewhere, version, [(0, 10)])[0] == [False]
        assert fetch(client, missing, version, [(0, 10)])[0] == [False]
        assert fetch(client, missing, None, [(0, 10)])[0] == [False]
    unkept = Version(Strength.NONE, "", MIB)
    assert fetch(client, name, unkept, [(0, 10)])[0] == [False]
    assert client.counts.lost == 0
    assert client.stat(missing) is None
    found = client.stat(name)
    assert found is not None
    assert found.version == version


def test_grants_decide_by_identity_and_path(nodes: Nodes) -> None:
    nodes.secret_file.write_text(f"{'a' * 32}\nguest {'b' * 32}\n")
    name, version, data = nodes.file("object", 1000)
    folder = nodes.folder / "open"
    folder.mkdir()
    granted, granted_version, _ = nodes.file("open/object", 1000, seed=1)
    join = nodes.start_static(1, grants=(("default", "*", ""), ("guest", "*", str(folder))))
    owner, guest = nodes.client(join), nodes.client(join, identity="guest")
    assert fetch(owner, name, version, [(0, 1000)]) == ([True], [data])
    assert fetch(guest, name, version, [(0, 1000)])[0] == [False]
    assert fetch(guest, granted, granted_version, [(0, 10)])[0] == [True]
    assert fetch(guest, name, version, [(0, 1000)])[0] == [False]
    sneaking = ObjectName(name.namespace, f"{folder}/../object")
    assert fetch(guest, sneaking, version, [(0, 1000)])[0] == [False]


def test_children_after_a_fork_have_connections_of_their_own(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(2))
    name, version, data = nodes.file("object", 8 * MIB)
    ranges = ranges_of(8 * MIB, MIB)
    assert fetch(client, name, version, ranges)[0] == [True] * 8
    stop = threading.Event()

    def read_on() -> None:
        while not stop.is_set():
            assert b"".join(fetch(client, name, version, ranges)[1]) == data

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read_on) for _ in range(2)]
        for _ in range(5):
            _in_child(client, name, version, data)
        stop.set()
        for future in reading:
            future.result()
    assert client.counts.lost == 0


def _in_child(client: PeerClient, name: ObjectName, version: Version, data: bytes) -> None:
    """Reads in a forked child, which ends without Python's clean-up."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)

    def read(told: Connection) -> None:
        came, buffers = fetch(client, name, version, ranges_of(len(data), MIB))
        told.send(all(came) and b"".join(buffers) == data)
        told.close()
        os._exit(0)

    child = context.Process(target=read, args=(sending,))
    child.start()
    sending.close()
    assert receiving.poll(20)
    assert receiving.recv()
    child.join()
    receiving.close()


def test_a_client_can_be_pickled_without_its_secret(nodes: Nodes) -> None:
    join = nodes.start_static(1)
    name, version, data = nodes.file("object", 1000)
    text = pickle.dumps(nodes.client(join))
    assert nodes.secret_file.read_bytes().strip() not in text
    nodes.clients.append(pickle.loads(text))
    assert fetch(nodes.clients[-1], name, version, [(0, 1000)]) == ([True], [data])


def test_a_restarted_worker_serves_from_its_disk(nodes: Nodes) -> None:
    join = nodes.start_static(1)
    name, version, data = nodes.file("object", 3 * MIB)
    client = nodes.client(join)
    assert fetch(client, name, version, [(0, 3 * MIB)]) == ([True], [data])
    (node,) = nodes.plans
    nodes.kill(node)
    nodes.relaunch(node)
    nodes.wait(node)
    # The kept connection is stale: it is noticed, and costs nothing but a new one.
    assert fetch(client, name, version, [(0, 3 * MIB)]) == ([True], [data])
    assert sum(nodes.store_reads().values()) == 3
    assert client.counts.found_lost == 0


def test_what_is_hot_is_served_by_others_as_well_and_read_from_the_store_once(nodes: Nodes) -> None:
    client = nodes.client(nodes.start_static(3, hot_per_s=5.0))
    name, version, data = nodes.file("object", MIB)
    deadline = time.monotonic() + 30
    served: dict[str, int] = {}
    while sum(count > 0 for count in served.values()) < 2:
        assert time.monotonic() < deadline, served
        for _ in range(50):
            assert fetch(client, name, version, [(0, 4096)]) == ([True], [data[:4096]])
        served = {node: (client.status(node) or {})["requests"] for node in nodes.plans}
    assert sum(nodes.store_reads().values()) == 1
