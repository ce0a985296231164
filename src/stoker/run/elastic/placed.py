"""Ranks on GPUs of a Ray cluster: the launcher's side of :mod:`stoker.backends.ray.ranks`, without Ray.

Behind the same seam as ranks here. The folder, the run folder in it, and the Python must be there on all nodes.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.backends.ray import joining
from stoker.backends.ray.allocator.launch import JOB_ENV
from stoker.backends.ray.ranks import PLACE_S, RankNews, RankOrder
from stoker.backends.remote.brokering import Lines
from stoker.core.errors import ClusterStartError, WireError
from stoker.core.saying import say
from stoker.run.elastic.ranks import GRACE_S

_START = "import sys; from stoker.backends.ray.ranks import main; main(*map(int, sys.argv[1:]))"
_JOIN_S = 90.0
_LOST = 1


def may_be_placed(environ: Mapping[str, str]) -> bool:
    """Whether ranks go to a cluster's GPUs: there is one, and this process is no job that has its own there."""
    return JOB_ENV not in environ and joining.find() is not None


class PlacedRanks:
    """Ranks by Ray, each with a GPU.

    Args:
        folder: for what they print.
        insecure: whether a cluster without authentication is taken.

    Raises:
        ClusterStartError: the cluster can't be joined.
    """

    def __init__(self, folder: Path, *, insecure: bool) -> None:
        self._folder = folder
        self._status: int | None = None
        self._ended_by = 0
        self._runs = False
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = (str(theirs.fileno()), str(os.getpid()), str(int(insecure)))
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
            )  # fmt: skip
        self._lines = Lines(ours)
        self._texts: list[str] = []
        self.gpus = self._await_gpus()
        """GPUs of the cluster."""

    def _await_gpus(self) -> int:
        end_s = time.monotonic() + _JOIN_S
        while (left_s := end_s - time.monotonic()) > 0.0:
            select.select([self._lines], [], [], left_s)
            heard = self._hear()
            for news in heard or ():
                if news.gpus is not None:
                    return news.gpus
            if heard is None:
                break
        self.close()
        raise ClusterStartError(
            "`--training-workers` must join the cluster for its GPUs, and could not; `stoker cluster doctor` looks why"
        )

    def _hear(self) -> list[RankNews] | None:
        try:
            heard = self._lines.receive(RankNews)
        except WireError:
            heard = None
        for news in heard or ():
            if news.text:
                say(news.text)
        return heard

    def start(self, workers: int, environ: Mapping[str, str], program: Sequence[str]) -> None:
        """Starts ranks once so many GPUs are free, all at once."""
        kept = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
        kept.pop("CUDA_VISIBLE_DEVICES", None)
        self._status, self._runs, self._ended_by = None, True, 0
        self._send(
            RankOrder(
                workers=workers, environ=kept, command=[sys.executable, *program], folder=os.getcwd(),
                logs=str(self._folder),
            )
        )  # fmt: skip

    def poll(self) -> int | None:
        """0, 1 where a rank has failed, or a signal that ended them."""
        heard = self._hear() if self._status is None else []
        if heard is None and self._status is None:
            say("the process that keeps the ranks on the cluster has ended, and they with it")
            self._status, self._runs = _LOST, False
        for news in heard or ():
            if news.status is not None:
                self._status, self._runs = (min(news.status, 1) if not self._ended_by else -self._ended_by), False
        return self._status

    def interrupt(self, number: int) -> None:
        """Ends all ranks by SIGTERM, whatever the signal is: it cannot be passed on to other machines."""
        self._ended_by = number
        self._send(RankOrder(grace_s=GRACE_S))

    def end(self) -> None:
        """Ends all ranks; returns when they have."""
        if not self._runs:
            return
        self._ended_by = signal.SIGTERM
        self._send(RankOrder(grace_s=GRACE_S))
        end_s = time.monotonic() + GRACE_S + PLACE_S
        while self._runs and time.monotonic() < end_s:
            select.select([self._lines], [], [], 0.1)
            self.poll()

    def close(self) -> None:
        """Ends the process that keeps them, and so what is left of them."""
        self.end()
        self._lines.sock.close()
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, order: RankOrder) -> None:
        try:
            self._lines.send(order)
        except OSError:
            self._runs = False  # as `poll` finds
