"""The actor on a node: starts one plain child, the host, and passes the broker's word on to it.

An actor's imports take seconds and Ray reports its death late, so nothing else is done in it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading

import msgspec

from stoker.backends.remote.host.brokered import HostOrder, HostReady

START_S = 120.0
"""How long a host may take to import torch and listen."""
_START = "import sys; from stoker.backends.remote.host.brokered import main; main(int(sys.argv[1]))"


class HostActor:
    """One for a node and a gateway."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, order: bytes) -> bytes:
        """Starts the host.

        Args:
            order: a :class:`HostOrder` as JSON.

        Returns:
            A :class:`HostReady` as JSON, once it listens.
        """
        process = self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        # A raylet that is killed and not reaped keeps its actors alive for good; this one goes with its host.
        threading.Thread(target=_end_with, args=(process,), daemon=True).start()
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        with contextlib.suppress(BrokenPipeError):
            os.write(process.stdin.fileno(), msgspec.json.encode(msgspec.json.decode(order, type=HostOrder)) + b"\n")
        if not poll.poll(START_S * 1e3):
            process.kill()
            return msgspec.json.encode(HostReady(error=f"it does not listen within {START_S:.0f} s"))
        return process.stdout.readline() or msgspec.json.encode(HostReady(error="it ended while it started"))

    def renew(self) -> None:
        """The broker lives."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it is stopped, or has ended
                os.write(self._process.stdin.fileno(), b".")


def _end_with(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    os._exit(0)
