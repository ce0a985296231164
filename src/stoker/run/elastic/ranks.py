"""Starts a program's ranks and ends them: a seam, behind which torchrun does it here.

Ranks are ended together and at once, so that none sees another die: all are stopped, each is sent SIGTERM, and all
go on. torchrun, stopped too, does not see it either: it would call it a failure, and spend a restart. Each number of
ranks is a new torchrun, because its elastic rendezvous waits half a minute for more to come, and fails the steps of
those that stay.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from stoker.backends.process_tree import children, descendants
from stoker.core.processes.parents import adopt_orphans, signal_when_orphaned
from stoker.feed.shell.processes import process_state

GRACE_S = 10.0
"""After it ranks that have not ended are killed, as torchrun does after its own."""
_POLL_S = 0.02


class Ranks(Protocol):
    """The ranks of a program, of which one set runs at a time."""

    def start(self, workers: int, environ: Mapping[str, str], program: Sequence[str]) -> None:
        """Starts so many ranks of a program.

        Args:
            workers: ranks.
            environ: of each, without what tells it its place.
            program: a script or ``-m module``, then its arguments.
        """
        ...

    def poll(self) -> int | None:
        """The status of the program if it has ended, as of :class:`subprocess.Popen`; else None."""
        ...

    def interrupt(self, number: int) -> None:
        """Passes a signal on, once, as a terminal would."""
        ...

    def end(self) -> None:
        """Ends all ranks and what they started; does nothing where none runs."""
        ...

    def close(self) -> None:
        """The same, for good."""
        ...


class TorchrunRanks:
    """Ranks on this machine, under torchrun.

    Args:
        folder: for torchrun's own files, which are not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._agent: subprocess.Popen[bytes] | None = None
        adopt_orphans()

    def start(self, workers: int, environ: Mapping[str, str], program: Sequence[str]) -> None:
        """Starts torchrun, in a separate process group: a terminal's Ctrl-C comes to this process alone."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        own = os.getpid()
        self._agent = subprocess.Popen(
            [*command, "--log-dir", str(self._folder), *program],
            env=dict(environ),
            process_group=0,
            preexec_fn=lambda: signal_when_orphaned(signal.SIGTERM, own),
        )

    def poll(self) -> int | None:
        """Torchrun's status, once it has ended."""
        return self._agent.poll() if self._agent is not None else None

    def interrupt(self, number: int) -> None:
        """Passes a signal on to torchrun, which passes it on to its ranks."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(number)

    def end(self) -> None:
        """Ends the ranks as the module's text says, then torchrun, then what is left."""
        agent, self._agent = self._agent, None
        if agent is None:
            return
        if agent.poll() is None:
            agent.send_signal(signal.SIGSTOP)
            ranks = children(agent.pid)
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
                for pid in ranks:
                    _signal(pid, number)
            end_s = time.monotonic() + GRACE_S
            while any(map(_is_alive, ranks)) and time.monotonic() < end_s:
                time.sleep(_POLL_S)
            agent.kill()
            agent.wait()
        if agent.returncode < 0:  # else torchrun has ended its ranks, and what they left running is the program's
            _end_rest()

    def close(self) -> None:
        """Ends the ranks."""
        self.end()


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _is_alive(pid: int) -> bool:
    return process_state(pid) not in ("", "Z", "X")


def _end_rest() -> None:
    """Kills what is left below this process, and takes leave of it: helpers of multiprocessing have their second."""
    end_s = time.monotonic() + 1.0
    while rest := [pid for pid in descendants(os.getpid()) if _is_alive(pid)]:
        if time.monotonic() > end_s:
            for pid in rest:
                _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
