"""Many clients of one worker: small hits from one thread, the rest beside it, and nobody waits for a slow one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.cluster.messages.frames import Blob, Data, Kind, Range, Read, Refused, encode
from stoker.cache.cluster.messages.handshake import Identity, greet
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.protocols import Mount
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.sources.opening import open_source
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version
from stoker.wire.sockets import dial
from tests.cache.cluster.worker_program import FILES

pytestmark = pytest.mark.integration
SIZE = 3 * PAGE_BYTES
FRAME_BYTES = 32 << 20


class Worker:
    """A server in this process, with one object that it holds and one that it does not."""

    def __init__(self, folder: Path, pages: PageStore) -> None:
        self.path = str(folder / "worker.sock")
        membership = open_membership(f"static:{self.path}")
        settings = ServerSettings(node=self.path, listen=(f"unix://{self.path}",))
        mounts = [Mount("files", FILES.namespace, open_source(FILES))]
        self.server = Server(pages, mounts, membership, Identity(), settings)
        self.server.start()
        self.data = np.random.default_rng(0).bytes(SIZE)
        self.name, self.version = self._file(folder / "object")
        client = self.connect()
        for page in range(3):
            assert self.read(client, page * PAGE_BYTES, PAGE_BYTES) == self.data[page * PAGE_BYTES :][:PAGE_BYTES]
        client.close()

    def _file(self, path: Path) -> tuple[ObjectName, Version]:
        path.write_bytes(self.data)
        return ObjectName(FILES.namespace, str(path)), open_source(FILES).info(str(path)).version

    def connect(self) -> NodeChannel:
        channel = NodeChannel(dial(f"unix://{self.path}", 10.0), 10.0)
        greet(channel, Identity(), 0)
        return channel

    def asking(self, *ranges: tuple[int, int]) -> bytes:
        asked = tuple(Range(start, length) for start, length in ranges)
        return encode(Read(self.name.namespace, self.name.path, self.version, asked))

    def read(self, channel: NodeChannel, start: int, length: int) -> bytes:
        channel.send_all(self.asking((start, length)))
        return received(channel, length)


def received(channel: NodeChannel, length: int) -> bytes:
    """The bytes of one range, in whatever frames they come."""
    got = bytearray(length)
    left = length
    while left:
        frame = channel.message(FRAME_BYTES)
        if isinstance(frame, Data):
            got[frame.offset : frame.offset + len(frame.payload)] = frame.payload
            left -= len(frame.payload)
        else:
            assert frame == Blob(Kind.FETCHING)
    return bytes(got)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with PageStore(tmp_path / "pages", StoreSettings(limit_bytes=256 << 20, keep_free_frac=0.0)) as pages:
        running = Worker(tmp_path, pages)
        yield running
        running.server.close()


def test_clients_that_ask_for_little_and_much_get_their_bytes(worker: Worker) -> None:
    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        channel = worker.connect()
        for length in rng.choice([1, 100, 4096, 60_000, 70_000, 500_000, PAGE_BYTES], 60).tolist():
            start = int(rng.integers(0, SIZE - length + 1))
            assert worker.read(channel, start, length) == worker.data[start : start + length]
        channel.close()

    with ThreadPoolExecutor(8) as clients:
        for done in [clients.submit(ask, seed) for seed in range(8)]:
            done.result(30.0)
    status = worker.server.status()
    assert (status["faults"], status["requests"]) == (0, 3 + 8 * 60)


def test_requests_sent_ahead_are_answered_in_order(worker: Worker) -> None:
    channel = worker.connect()
    asked = [(number * 4096, 4096) for number in range(50)]
    requests = b"".join(worker.asking(one) for one in asked)
    sender = threading.Thread(target=channel.sock.sendall, args=(requests,))  # in pieces that end within requests
    sender.start()
    for start, length in asked:
        assert received(channel, length) == worker.data[start : start + length]
    sender.join(10.0)
    channel.close()


def test_a_client_that_takes_nothing_makes_nobody_wait(worker: Worker) -> None:
    slow, quick = worker.connect(), worker.connect()
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asked = [(number * 60_000, 60_000) for number in range(40)]
    slow.send_all(b"".join(worker.asking(one) for one in asked))  # 2.4 MB, far more than sockets keep
    for number in range(100):
        assert worker.read(quick, number * 4096, 4096) == worker.data[number * 4096 :][:4096]
    for start, length in asked:
        assert received(slow, length) == worker.data[start : start + length]
    slow.close()
    quick.close()


def test_what_cannot_be_answered_at_once_is_answered_by_a_thread_and_small_hits_after_it(worker: Worker) -> None:
    channel = worker.connect()
    for _ in range(2):
        channel.send(Blob(Kind.PING))
        assert channel.message(4096) == Blob(Kind.PONG)
        assert worker.read(channel, 5, 100) == worker.data[5:105]
        channel.send_all(worker.asking((0, 10), (2 * PAGE_BYTES - 5, 10), (7, 0)))
        frames = [channel.message(FRAME_BYTES) for _ in range(4)]
        assert [len(frame.payload) for frame in frames if isinstance(frame, Data)] == [10, 5, 5, 0]
    channel.close()


def test_garbage_ends_its_connection_alone(worker: Worker) -> None:
    broken, other = worker.connect(), worker.connect()
    assert worker.read(broken, 0, 4096) == worker.data[:4096]
    broken.send_all(b"\xff" * 64)
    assert isinstance(broken.message(4096), Refused)
    assert broken.header() is None
    assert worker.read(other, 0, 4096) == worker.data[:4096]
    broken.close()
    other.close()


def test_closing_ends_connections_that_wait(worker: Worker) -> None:
    channel = worker.connect()
    assert worker.read(channel, 0, 4096) == worker.data[:4096]
    worker.server.close()
    assert channel.header() is None
    channel.close()
