"""How long it takes until a host's first data worker has made a batch, from the first word on, and each further one."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, run
from benchmarks.support.remote import ITERATION, Receiver
from stoker.backends.ship_records import DIGEST, PROGRAM, RECORD, SAMPLE
from stoker.backends.shipping import made_of, pack_parcel
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.program import Program, WorkerIdentity, WorkItem
from stoker.feed.transport.messages import Channel, LeaseFlag, MessageKind, pack_lease
from stoker.wire.secrets import create_secret

BAR = Bar(
    "remote_start",
    "time to the first batch of a host's first data worker, against a bare interpreter; and of each further one",
    headline=("first_over_bare_s", "further"),
)
_LOAD = "import sys, pickle, torch; sys.path[:0] = {path!r}; pickle.load(open({file!r}, 'rb'))[0]"


class Pictures(Dataset[torch.Tensor]):
    """Pictures in memory: a program of a few megabytes."""

    def __init__(self) -> None:
        self._pixels = np.random.default_rng(0).integers(0, 255, (1000, 3, 32, 32), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._pixels[index].astype(np.float32) / 255.0)


def measure(options: Options) -> Report:
    """Connection, admission and a first batch on a host that runs; an interpreter that imports torch and loads."""
    report = Report()
    program = LoaderFeed.program_of(DataLoader(Pictures(), 32, num_workers=1))
    sample = pickle.dumps((ITERATION, (0, WorkItem(indices=list(range(32)), start=0))), 5)
    further: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _host(Path(folder)) as (address, secret):
        stored = Path(folder) / "program"
        stored.write_bytes(cloudpickle.dumps((program.dataset, program.collate_fn)))

        def bare() -> float:
            begun = time.perf_counter()
            code = _LOAD.format(path=[str(Path(__file__).parents[1])], file=str(stored))
            subprocess.run([sys.executable, "-c", code], check=True)
            return time.perf_counter() - begun

        def ours() -> float:
            begun = time.perf_counter()
            receiver = Receiver(address, secret, 1 << 20, 32, lambda fd: _ship(program, sample, fd))
            try:
                receiver.lease()
                receiver.take()
                seconds = time.perf_counter() - begun
                further.extend(1000.0 * _further_s(receiver, number) for number in (1, 2))
            finally:
                receiver.close()
            return seconds

        found = alternate(options.pick(options.rounds, options.rounds, 1), {"host": ours, "bare": bare})
    rows = [[f"{name}, s", *Spread.of(found[name]).show(2)] for name in found]
    rows.append(["one more worker, ms", *Spread.of(further).show(1)])
    report.table(["", "median", "lowest - highest"], rows)
    above = [one - 1.3 * other for one, other in zip(found["host"], found["bare"], strict=True)]
    report.at_most("first_over_bare_s", "first batch of a host, less 1.3 bare interpreters", above, 1.5, 2, " s")
    report.at_most("further", "one more worker, to its first batch", further, 60.0, 1, " ms")
    return report


def _further_s(receiver: Receiver, number: int) -> float:
    """Seconds from asking for a worker to its first batch."""
    begun = time.perf_counter()
    channel: Channel = receiver.gateway.spawn(WorkerIdentity(number=number, worker_id=0, board_slot=0))
    channel.send(MessageKind.ITERATION, pickle.dumps(ITERATION))
    about = pickle.dumps((0, receiver.ring.slot_bytes, receiver.ring.num_slots))
    channel.send(MessageKind.RING, about, (receiver.ring.fd,))
    slot: Any = receiver.ring.take()
    work = pickle.dumps(WorkItem(indices=[0], start=0))
    channel.send(MessageKind.LEASE, pack_lease(900 + number, 900 + number, 0, slot, LeaseFlag.NONE) + work)
    receiver.take(channel)
    return time.perf_counter() - begun


def _ship(program: Program, sample: bytes, fd: int) -> None:
    """As the template's child does, in a thread."""
    import socket

    sock = socket.socket(fileno=os.dup(fd))

    def send() -> None:
        with sock, contextlib.suppress(OSError):
            parcel = pack_parcel(program)
            sock.sendall(RECORD.pack(PROGRAM, len(parcel)) + parcel + RECORD.pack(SAMPLE, len(sample)) + sample)
            if sock.recv(1):
                made = made_of(program, sample)
                sock.sendall(RECORD.pack(DIGEST, len(made)) + made)

    threading.Thread(target=send, daemon=True).start()


@contextlib.contextmanager
def _host(folder: Path) -> Iterator[tuple[str, Path]]:
    """A host: its address, and the file of its secret."""
    secret = folder / "secret"
    create_secret(secret)
    command = [sys.executable, "-m", "stoker", "cluster", "host", "--listen", "127.0.0.1:0", "--cores", "4"]
    process = subprocess.Popen([*command, "--secret-file", str(secret)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r" at (\S+) for", process.stderr.readline())
        assert found is not None
        yield found[1], secret
    finally:
        process.terminate()
        process.communicate(timeout=20)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
