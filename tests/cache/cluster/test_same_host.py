"""Pages of a worker on the same machine: read from its files by its own user, and by nobody else."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stoker.cache.cluster.client.same_host import SameHost
from stoker.cache.cluster.messages.handshake import Identity, greet, receive
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version
from stoker.wire.sockets import dial
from tests.cache.cluster.nodes import Nodes, fetch, ranges_of

pytestmark = pytest.mark.integration
SETTINGS = StoreSettings(limit_bytes=1 << 30, keep_free_frac=0.0)
NOBODY = 65534


def test_pages_are_read_from_the_files_of_a_worker_that_stands_still(nodes: Nodes) -> None:
    join = nodes.start_static(1, unix=True)
    (node,) = nodes.processes
    name, version, data = nodes.file("object", 5 * PAGE_BYTES + 12_345)
    client = nodes.client(join)
    whole = [(0, len(data))]
    assert fetch(client, name, version, whole) == ([True], [data])
    before = client.counts.mapped
    nodes.stop(node)  # whoever asked it would wait
    asked = ranges_of(len(data), 700_001)
    came, got = fetch(client, name, version, asked)
    nodes.go_on(node)
    assert all(came)
    assert b"".join(got) == data
    assert client.counts.mapped - before == len(asked)


def test_another_version_than_the_one_that_is_held_is_asked_for(nodes: Nodes) -> None:
    join = nodes.start_static(1, unix=True)
    name, version, data = nodes.file("object", 200_000)
    client = nodes.client(join)
    assert fetch(client, name, version, [(0, 200_000)]) == ([True], [data])
    name, newer, other = nodes.file("object", 200_000, seed=1)
    assert newer != version
    assert fetch(client, name, newer, [(0, 200_000)]) == ([True], [other])
    assert client.counts.mapped == 0
    assert fetch(client, name, newer, [(5, 100_000)]) == ([True], [other[5:100_000]])
    assert client.counts.mapped == 1


def test_what_is_evicted_is_asked_for_and_maps_of_it_still_read_right(nodes: Nodes) -> None:
    join = nodes.start_static(1, unix=True)
    (plan,) = nodes.plans.values()
    name, version, data = nodes.file("object", 3 * PAGE_BYTES)
    client = nodes.client(join)
    whole = [(0, len(data))]
    for _ in range(2):
        assert fetch(client, name, version, whole) == ([True], [data])
    with PageStore(Path(plan.directory), SETTINGS) as pages:
        key = name.key(1)
        view = pages.view(key, pages.lookup(key))  # type: ignore[arg-type]
        assert view is not None
        pages.evict()
        assert client.counts.mapped == 1
        assert fetch(client, name, version, whole) == ([True], [data])
        assert client.counts.mapped == 1
        assert bytes(view) == data[PAGE_BYTES : 2 * PAGE_BYTES]
        view.release()


def _ask_as_nobody(path: Path, told: Connection) -> None:
    os.chdir(path.parent)  # whose parents others may not look into
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with dial(f"unix:///proc/self/cwd/{path.name}", 5.0) as sock:
        welcome = greet(NodeChannel(sock, 5.0), Identity(users=frozenset({0})), 0)
    told.send(welcome.roots)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_told_where_pages_are(nodes: Nodes) -> None:
    nodes.start_static(1, unix=True, users=(NOBODY,))
    (node,) = nodes.processes
    Path(node).chmod(0o666)
    Path(node).parent.chmod(0o711)
    ours, theirs = get_context("fork").Pipe()
    process = get_context("fork").Process(target=_ask_as_nobody, args=(Path(node), theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv() == ()
    finally:
        process.join(10)
    with dial(f"unix://{node}", 5.0) as sock:
        assert greet(NodeChannel(sock, 5.0), Identity(), 0).roots == (nodes.plans[node].directory,)


def test_only_stores_of_this_user_are_opened(tmp_path: Path) -> None:
    neighbours = SameHost()
    with PageStore(tmp_path / "own", SETTINGS) as pages:
        version = Version(Strength.ETAG, "one", 10)
        (tmp_path / "empty").mkdir()
        neighbours.told(["relative", str(tmp_path / "missing"), str(tmp_path / "empty"), "/\0", str(tmp_path)])
        assert not neighbours.stores
        assert list((tmp_path / "empty").iterdir()) == []
        if os.geteuid() == 0:
            os.chown(pages.layout.root, NOBODY, NOBODY)
            other = SameHost()
            other.told([str(pages.layout.root)])
            assert not other.stores
            os.chown(pages.layout.root, 0, 0)
        neighbours.told([str(pages.layout.root)])
        assert len(neighbours.stores) == 1
        name, buffer = ObjectName("memory", "key"), memoryview(bytearray(4))
        assert neighbours.read(name, version, [(2, 6)], [buffer]) == [False]
        assert pages.put(name, 0, version, b"0123456789", checked_at=0.0)
        assert neighbours.read(name, version, [(2, 6), (8, 12)], [buffer, buffer]) == [True, False]
        assert bytes(buffer) == b"2345"
        neighbours.close()
        assert not neighbours.stores


@pytest.mark.parametrize(
    ("roots", "told"),
    [
        (("/a", "/\xe9"), ("/a", "/\xe9")),
        (("/a", "/\udcff"), ("/a",)),  # a name that is no UTF-8
        (("/" + "a" * 3000,), ()),
    ],
)
def test_a_worker_with_strange_directories_can_be_connected_to(roots: tuple[str, ...], told: tuple[str, ...]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as beside:
        future = beside.submit(receive, NodeChannel(theirs, 5.0), Identity(), 1, False, 0, roots)
        assert greet(NodeChannel(ours, 5.0), Identity(), 0).roots == told
        assert future.result(5.0).identity == f"uid:{os.geteuid()}"
