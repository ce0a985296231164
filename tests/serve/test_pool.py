"""What a pool says of a model that does not start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from stoker.core.errors import ServingError
from stoker.serve.processes.messages import FRAMING, EngineMessage, Failure, pack
from stoker.serve.processes.pool import EnginePool
from stoker.serve.processes.pooled import PoolSettings
from stoker.wire.polled import PolledChannel


class NotAsked:
    """A listener of a version that is not there yet."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"`{name}` is for a version that has started")


def test_a_model_that_fails_and_ends_is_told_of_once() -> None:
    said: list[str] = []

    def start_model(sock: socket.socket, behind: bool, identity: bytes) -> None:
        PolledChannel(sock, FRAMING, blocking=False).send(EngineMessage.FAILED, pack(Failure("no weights")))

    async def start() -> str:
        pool = EnginePool(start_model, PoolSettings(engines=1, max_batch=1), NotAsked(), "`m`", said.append)
        told = ""
        try:
            await pool.start()
        except ServingError as error:
            told = str(error.args[0])
            for _ in range(4):  # the end of its process is heard of before it is closed
                await asyncio.sleep(0)
        with contextlib.suppress(OSError):
            await pool.close()
        return told

    errors: list[dict[str, Any]] = []
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        assert runner.run(start()) == "`m` must be a model that runs: no weights"
    assert (said, errors) == ([], [])
