"""Hosts on loopback, and what is to be seen of them and of a gateway."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.run.loaders import patch
from stoker.wire.secrets import create_secret
from tests.faults.harness import below, is_alive, named
from tests.waiting import await_that


class Host:
    """A `stoker cluster host` process."""

    def __init__(self, secret: Path, *options: str) -> None:
        command = [sys.executable, "-m", "stoker", "cluster", "host", "--listen", "127.0.0.1:0"]
        self.log = secret.with_name(f"host-{time.monotonic_ns()}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, "--secret-file", str(secret), *options], stderr=log)
        self.secret = secret
        await_that(
            "it listens", lambda: b" at 127.0.0.1:" in self.log.read_bytes() or self.process.poll() is not None, 60.0
        )
        found = re.search(r" at (127.0.0.1:\d+)", self.said)
        assert found, self.said
        self.address = found[1]

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def settings(self) -> dict[str, Any]:
        """What a program is served with: one worker here and two there."""
        return {
            "backend": f"static:{self.address}", "remote_secret_file": str(self.secret), "workers": 1,
            "remote_workers": 2,
        }  # fmt: skip

    def sessions(self) -> list[int]:
        return named("stoker_session", below(self.process.pid))

    def workers(self) -> list[int]:
        return named("stoker_worker", below(self.process.pid))

    def is_empty(self) -> bool:
        """Whether nothing is left but the host itself."""
        return not below(self.process.pid)

    def close(self) -> None:
        for pid in below(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.process.terminate()
        self.process.wait(10)


@contextlib.contextmanager
def opened(folder: Path, *options: str) -> Iterator[Host]:
    """A host with a fresh secret."""
    for package in ("cloudpickle", "cryptography"):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'stoker[cluster]'")
    secret = folder / "secret"
    if not secret.exists():
        create_secret(secret)
    host = Host(secret, *options)
    try:
        yield host
    finally:
        host.close()


class Slow:
    """Samples that take a while, and are the same anywhere."""

    def __init__(self, length: int = 100_000, seconds: float = 0.005) -> None:
        self.length, self.seconds = length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.full((100,), float(index))


class Taking:
    """A program that takes batches of :class:`Slow`, and looks whether they are the right ones."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.iterator = iter(loader)
        self.taken = 0

    def take(self, count: int) -> None:
        size = self.loader.batch_size
        for _ in range(count):
            batch = next(self.iterator)
            assert batch[:, 0].tolist() == [float(self.taken * size + k) for k in range(size)]
            assert torch.equal(batch[:, :1].expand(-1, 100), batch)
            self.taken += 1

    @property
    def counters(self) -> Any:
        """What the loader's feed has counted."""
        serving = patch.current()
        assert serving is not None
        feed = serving.known_feed(self.loader)
        assert feed is not None
        return feed.counters

    @property
    def away(self) -> int:
        """Items that other machines have made."""
        return self.counters.items_away

    def until_away(self, more: int = 5, timeout_s: float = 100.0) -> None:
        """Takes until other machines have made so many items more."""
        wanted, deadline = self.away + more, time.monotonic() + timeout_s
        while self.away < wanted:
            assert time.monotonic() < deadline, f"no items from other machines within {timeout_s} s"
            self.take(1)


def gateways() -> list[int]:
    """Gateways of this process."""
    return [pid for pid in named("stoker_gateway", below(os.getpid())) if is_alive(pid)]
