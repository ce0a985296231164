"""A gateway and its other side, without a loader: what it costs to get a batch from another process's slot to ours."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.remote.host.keeping import called_program
from stoker.backends.remote.host.loading import LoadedProgram
from stoker.backends.remote.host.session import HostSession
from stoker.backends.remote.messages import PURPOSE
from stoker.backends.remote.reach import GatewayProcess, RemoteBackend, RemoteGateway
from stoker.backends.remote.settings import RemoteSettings
from stoker.backends.ship_records import PROGRAM, RECORD, SAMPLE
from stoker.core.slots.ring import Ring
from stoker.feed.program import Iteration, Tier, WorkerIdentity, WorkItem
from stoker.feed.transport.messages import (
    Channel,
    Frame,
    LeaseFlag,
    MessageKind,
    Place,
    ReadyHeader,
    pack_lease,
    unpack_lease,
    unpack_ready,
)
from stoker.feed.transport.rings import Payload
from stoker.wire.certificates import create_certificate
from stoker.wire.greeting import receive
from stoker.wire.secrets import create_secret, load_secrets

ITERATION = Iteration(ordinal=0, base_seed=1, tier=Tier.ELASTIC)


class Source(HostSession):
    """A session whose only worker has made all batches already: what is left is sending them from its slot."""

    ring: Ring

    def _begin_sample(self, program: Any, sample: bytes) -> None:
        self._admit("")

    def _give_birth(self, number: int, worker_id: int, iteration: Iteration) -> None:
        self._born[number] = None  # type: ignore[assignment]  # nobody

    def _on_tell(self, body: bytes) -> None:
        from stoker.backends.remote import messages

        number, kind, inner = messages.open_envelope(body)
        if kind is MessageKind.LEASE:
            lease, _ = unpack_lease(inner)
            size = self.ring.slot_bytes
            header = ReadyHeader(
                lease.seq, lease.generation, -1, -1, Place.SLOT, size, 4, 0.0, 0.0, 0.0, 0.0, 0, 0
            )  # fmt: skip
            slot = self.ring.take()
            assert slot is not None
            held = ReadyHeader(lease.seq, lease.generation, 0, slot, Place.SLOT, size, 4, 0.0, 0.0, 0.0, 0.0, 0, 0)
            payload = Payload(held, b"skel", ring=self.ring)
            self._outbox.append((messages.RemoteKind.BATCH, messages.pack_batch(number, header, b"skel"), payload))


@contextlib.contextmanager
def source(size_bytes: int) -> Iterator[tuple[str, Path, int]]:
    """Such a host: its address, the file of its secret, its process."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        create_secret(secret)
        with socket.create_server(("127.0.0.1", 0)) as server:
            pid = os.fork()
            if not pid:
                try:
                    sock, _ = server.accept()
                    Source.ring = Ring(0, size_bytes, 8)
                    Source.ring.view(0, size_bytes)[:] = 1
                    nothing: Any = object()
                    loaded = LoadedProgram(fingerprint=called_program(sock), program=nothing)
                    secured = receive(sock, load_secrets(secret), create_certificate(), PURPOSE, 10.0)
                    Source(secured, 1.0, "benchmark", loaded).run()
                finally:
                    os._exit(0)
            try:
                yield f"127.0.0.1:{server.getsockname()[1]}", secret, pid
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class Receiver:
    """A crew reduced to one worker elsewhere and a ring."""

    def __init__(
        self,
        address: str,
        secret: Path,
        size_bytes: int,
        num_slots: int = 4,
        ship: Callable[[int], None] | None = None,
    ) -> None:
        self.backend = RemoteBackend(RemoteSettings(backend=f"static:{address}", secret_file=str(secret)), 60.0)
        self.gateway = RemoteGateway(self.process, 60.0)
        self.gateway.prepare(ship or _ship_nothing)
        self._await_room()
        self.channel = self.gateway.spawn(WorkerIdentity(number=0, worker_id=0, board_slot=0))
        self.ring = Ring(0, size_bytes, num_slots)
        self.seq = 0
        self._came: deque[Frame] = deque()
        self.channel.send(MessageKind.ITERATION, pickle.dumps(ITERATION))
        about = pickle.dumps((0, self.ring.slot_bytes, num_slots))
        self.channel.send(MessageKind.RING, about, (self.ring.fd,))

    @property
    def process(self) -> GatewayProcess:
        """The gateway."""
        return self.backend.process

    def _await_room(self) -> None:
        deadline = time.monotonic() + 30.0
        while not self.gateway.room:
            assert time.monotonic() < deadline, "the gateway is there in time"
            time.sleep(0.01)
            self.gateway.hear()

    def lease(self) -> None:
        """Asks for one batch more."""
        slot = self.ring.take()
        assert slot is not None
        self.seq += 1
        work = pickle.dumps(WorkItem(indices=[0], start=0))
        self.channel.send(MessageKind.LEASE, pack_lease(self.seq, self.seq, 0, slot, LeaseFlag.NONE) + work)

    def take(self, channel: Channel | None = None) -> np.ndarray[Any, Any]:
        """The next batch, in its slot, which is given back."""
        channel = channel or self.channel
        while not self._came:
            channel.await_frames(10.0)
            self._came.extend(channel.receive() or ())
        header, _ = unpack_ready(self._came.popleft().body)
        assert header.place is Place.SLOT
        view = self.ring.view(header.slot, header.payload_bytes)
        self.ring.give_back(header.slot)
        return view

    def close(self) -> None:
        """Ends the gateway."""
        self.channel.close()
        self.gateway.close()
        self.backend.close()
        self.ring.close()


def _ship_nothing(fd: int) -> None:
    """A program that the source does not look at; the sample is never made."""
    sock = socket.socket(fileno=os.dup(fd))
    sock.sendall(RECORD.pack(PROGRAM, 1) + b"p" + RECORD.pack(SAMPLE, 1) + b"s")
    _shipped.append(sock)


_shipped: list[socket.socket] = []


def cpu_s(pid: int) -> float:
    """Processor time of a process."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
