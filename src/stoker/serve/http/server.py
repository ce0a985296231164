"""uvicorn around the door, on sockets and signals of ours: SIGTERM and Ctrl-C drain it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn

from stoker.serve.http.door import Application

_KEEP_ALIVE_S = 60


class DrainedServer(uvicorn.Server):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: uvicorn would raise the signal again after the drain, before the engines have ended."""
        yield


async def serve_until_told(
    application: Application, sock: socket.socket, drain_s: float, on_drain: Callable[[], object]
) -> None:
    """Serves until SIGTERM or SIGINT; then answers what has arrived, for ``drain_s`` at most, and returns.

    Args:
        application: the door.
        sock: that listens.
        drain_s: bound of the drain.
        on_drain: called when it begins.
    """
    config = uvicorn.Config(
        application, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(drain_s)),
    )  # fmt: skip
    server = DrainedServer(config)
    loop = asyncio.get_running_loop()

    def told() -> None:
        # A second signal ends the wait for answers.
        server.force_exit = server.should_exit
        server.should_exit = True
        on_drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    try:
        await server.serve(sockets=[sock])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
