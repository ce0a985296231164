"""uvicorn around the door, on sockets and signals of ours: SIGTERM and Ctrl-C drain it, twice they end it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import uvicorn

from stoker.serve.http.door import InferenceDoor
from stoker.serve.http.whole_requests import InferenceConnection

_KEEP_ALIVE_S = 60


class DrainedServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: uvicorn would raise the signal again after the drain, before the engines have ended."""
        yield


class Shutdown:
    """The end of a service: the first SIGTERM or SIGINT drains it, the second ends the wait for answers.

    Args:
        told: called at each of the two, with whether it is the second.
    """

    def __init__(self, told: Callable[[bool], object]) -> None:
        self.begun = asyncio.Event()
        """Set by the first."""
        self.forced = asyncio.Event()
        """Set by the second."""
        self._told = told

    @contextlib.contextmanager
    def by_signals(self) -> Generator[None]:
        """Listens to signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def unless_forced(self, drain: Coroutine[Any, Any, None]) -> None:
        """Waits for it, or cancels it at the second signal."""
        task, forced = asyncio.ensure_future(drain), asyncio.ensure_future(self.forced.wait())
        try:
            await asyncio.wait({task, forced}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
        finally:
            task.cancel()
            forced.cancel()

    def _signalled(self) -> None:
        if not self.forced.is_set():
            event = self.forced if self.begun.is_set() else self.begun
            event.set()
            self._told(event is self.forced)


async def serve_until_told(door: InferenceDoor, sock: socket.socket, drain_s: float, shutdown: Shutdown) -> None:
    """Serves until the shutdown begins; then answers what has arrived, for ``drain_s`` at most, and returns.

    Args:
        door: what answers.
        sock: that listens.
        drain_s: bound of the drain.
        shutdown: begins it, and may end it before.
    """
    config = uvicorn.Config(
        door, http=InferenceConnection, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )  # fmt: skip
    server = DrainedServer(config)

    async def follow() -> None:
        await shutdown.begun.wait()
        server.should_exit = True
        await shutdown.forced.wait()
        server.force_exit = True

    following = asyncio.ensure_future(follow())
    try:
        await server.serve(sockets=[sock])
    finally:
        following.cancel()
