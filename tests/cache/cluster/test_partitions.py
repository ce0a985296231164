"""Networks that swallow packets or let them trickle: what it costs, and that bytes are right."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.names import ObjectName
from stoker.cache.versions import Version
from tests.cache.cluster.etcd_server import free_port
from tests.cache.cluster.nodes import Nodes, fetch

pytestmark = pytest.mark.integration

TIMEOUT_S = 2.0
"""So long that a worker on a busy machine answers in time."""
SIZE = 300_000
THREADS = 4


class BlackHole:
    """An address at which connecting neither succeeds nor fails: packets are dropped."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._fillers: list[socket.socket] = []
        for _ in range(4):  # the queue of the kernel is full then
            filler = socket.socket()
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(self._listener.getsockname())
            self._fillers.append(filler)

    def close(self) -> None:
        for sock in (*self._fillers, self._listener):
            sock.close()


class Proxy:
    """Stands between clients and a worker; from some moment on it lets a byte through now and then."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.trickles = threading.Event()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                worker = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, worker]
                threading.Thread(target=self._pass_on, args=(client, worker), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(worker, client, self.trickles), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, trickles: threading.Event | None = None) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                slowly = trickles is not None and trickles.is_set()
                if not slowly:
                    other.sendall(data)
                for at in range(len(data) if slowly else 0):
                    other.sendall(data[at : at + 1])
                    self._ended.wait(0.1)

    def close(self) -> None:
        self._ended.set()
        for sock in (*self._sockets, self._listener):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def read_all(client: PeerClient, objects: list[tuple[ObjectName, Version, bytes]]) -> list[float]:
    """How long each read took; every byte is right."""
    took_s: list[float] = []
    for name, version, data in objects:
        began = time.monotonic()
        came, found = fetch(client, name, version, [(0, len(data))])
        took_s.append(time.monotonic() - began)
        assert not came[0] or found == [data]
    return took_s


@pytest.fixture
def hole() -> Iterator[BlackHole]:
    made = BlackHole()
    yield made
    made.close()


def test_a_black_hole_costs_each_thread_one_time_out_at_most(nodes: Nodes, hole: BlackHole) -> None:
    names = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    join = "static:" + ",".join([*names, hole.address])
    for name in names:
        nodes.launch(name, join, (f"tcp://{name}",))
    for name in names:
        nodes.wait(name)
    client = nodes.client(join, timeout_s=TIMEOUT_S)
    objects = [nodes.file(f"object-{number}", SIZE, seed=number) for number in range(30)]
    with ThreadPoolExecutor(THREADS) as pool:
        took_s = list(pool.map(lambda _: read_all(client, objects), range(THREADS)))
    assert client.lost() == [hole.address]
    late = [sum(each > 0.9 * TIMEOUT_S for each in mine) for mine in took_s]
    assert max(late) <= 1
    assert sum(late) >= 1
    assert max(read_all(client, objects)) < 0.9 * TIMEOUT_S  # nor once more


def test_a_worker_whose_bytes_trickle_is_not_waited_for(nodes: Nodes) -> None:
    ports = [free_port(), free_port()]
    proxy = Proxy(ports[0])
    other = f"127.0.0.1:{ports[1]}"
    join = f"static:{proxy.address},{other}"
    nodes.launch(proxy.address, join, (f"tcp://127.0.0.1:{ports[0]}",))
    nodes.launch(other, join, (f"tcp://{other}",))
    nodes.wait(proxy.address)
    nodes.wait(other)
    client = nodes.client(join, timeout_s=TIMEOUT_S)
    objects = [nodes.file(f"object-{number}", SIZE, seed=number) for number in range(8)]
    try:
        read_all(client, objects)
        proxy.trickles.set()
        began = time.monotonic()
        took_s = read_all(client, objects)
        assert time.monotonic() - began < 10 * TIMEOUT_S
        assert max(took_s) < 5 * TIMEOUT_S
        assert client.lost() == [proxy.address]
    finally:
        proxy.close()
