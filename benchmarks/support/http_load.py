"""Clients of an HTTP server: as many requests as it answers, or a rate of them; and the processor time it takes."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import cast

import numpy as np
import uvloop


@dataclass
class Answers:
    """What clients got.

    Attributes:
        latencies_s: of answers with status 200, from the moment a request was sent, or that at which it was due if the
            client was later than its timers are coarse.
        statuses: of all.
        wrong: of these, answers that are not as they must be.
        seconds: that it took.
    """

    latencies_s: list[float] = field(default_factory=list[float])
    statuses: Counter[int] = field(default_factory=Counter[int])
    wrong: int = 0
    seconds: float = 0.0

    def quantile_s(self, frac: float) -> float:
        """Of the latencies."""
        return float(np.quantile(self.latencies_s, frac)) if self.latencies_s else float("nan")

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.seconds


class _Connection(asyncio.Protocol):
    """One request at a time; ``done`` is called with status and body."""

    def __init__(self) -> None:
        self.transport: asyncio.WriteTransport | None = None
        self.done: Callable[[int, bytes], None] = lambda *_: None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.done(0, b"")

    def data_received(self, data: bytes) -> None:
        self._data += data
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._data[:end]).lower()
        at = head.find(b"content-length:") + 15
        if at < 15:  # in chunks, of which the last is empty
            if self._data.endswith(b"\r\n0\r\n\r\n"):
                body = bytes(self._data[end + 4 :])
                self._data.clear()
                self.done(int(head[9:12]), body)
            return
        length = int(head[at : head.find(b"\r\n", at) if b"\r\n" in head[at:] else None])
        if len(self._data) >= end + 4 + length:
            body = bytes(self._data[end + 4 : end + 4 + length])
            self._data.clear()
            self.done(int(head[9:12]), body)

    def ask(self, request: bytes, done: Callable[[int, bytes], None]) -> None:
        """Sends a request; the answer is told."""
        assert self.transport is not None
        self.done = done
        self.transport.write(request)


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """A request as bytes."""
    return f"POST {path} HTTP/1.1\r\nHost: b\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


Check = Callable[[bytes], bool]

_TICK_S = 1e-3
"""Resolution of the timers of uvloop; its clock is as coarse, so none of them is measured by it."""


def closed_loop(port: int, request: bytes, connections: int, seconds: float, check: Check | None = None) -> Answers:
    """Clients that each wait for an answer before they ask again."""
    return uvloop.run(_closed(port, request, connections, seconds, check))


def open_loop(
    port: int, request: bytes, rate: float, seconds: float, seed: int = 0, check: Check | None = None,
    over: Callable[[], bool] = lambda: False,
) -> Answers:  # fmt: skip
    """Requests that come at a rate, independently of each other, whatever the server does; ``over`` ends it earlier."""
    return uvloop.run(_open(port, request, rate, seconds, seed, check, over))


async def _connect(port: int) -> _Connection:
    _, made = await asyncio.get_running_loop().create_connection(_Connection, "127.0.0.1", port)
    return made


async def _closed(port: int, request: bytes, connections: int, seconds: float, check: Check | None) -> Answers:
    loop = asyncio.get_running_loop()
    found = Answers()
    clients = [await _connect(port) for _ in range(connections)]
    begun_s = perf_counter()
    end_s = begun_s + seconds
    left = connections
    over = loop.create_future()

    def ask(client: _Connection) -> None:
        nonlocal left
        since_s = perf_counter()
        if since_s >= end_s:
            left -= 1
            if not left:
                over.set_result(None)
            return

        def done(status: int, body: bytes) -> None:
            _note(found, status, body, perf_counter() - since_s, check)
            if status:
                ask(client)
            elif not over.done():
                over.set_exception(ConnectionError("the server closed a connection"))

        client.ask(request, done)

    for client in clients:
        ask(client)
    await over
    found.seconds = perf_counter() - begun_s
    for client in clients:
        client.done = lambda *_: None
        assert client.transport is not None
        client.transport.close()
    return found


async def _open(
    port: int,
    request: bytes,
    rate: float,
    seconds: float,
    seed: int,
    check: Check | None,
    over_early: Callable[[], bool],
) -> Answers:
    loop = asyncio.get_running_loop()
    found, idle = Answers(), [await _connect(port) for _ in range(64)]
    source = random.Random(seed)
    begun_s = due_s = perf_counter()
    running, sent, over = 0, False, loop.create_future()
    while (due_s := due_s + source.expovariate(rate)) < begun_s + seconds and not over_early():
        if (wait_s := due_s - perf_counter()) > 0:
            await asyncio.sleep(_TICK_S * math.ceil(wait_s / _TICK_S))
        client = idle.pop() if idle else await _connect(port)
        since_s = min(perf_counter(), due_s + _TICK_S)

        def done(status: int, body: bytes, client: _Connection = client, since_s: float = since_s) -> None:
            nonlocal running
            running -= 1
            if not running and sent:
                over.set_result(None)
            _note(found, status, body, perf_counter() - since_s, check)
            if status:
                idle.append(client)

        running += 1
        client.ask(request, done)
    found.seconds = perf_counter() - begun_s
    sent = True
    if running:
        await over
    for client in idle:
        client.done = lambda *_: None
        assert client.transport is not None
        client.transport.close()
    return found


def _note(found: Answers, status: int, body: bytes, latency_s: float, check: Check | None) -> None:
    found.statuses[status] += 1
    if status == 200:
        found.latencies_s.append(latency_s)
        if check is not None and not check(body):
            found.wrong += 1


def processor_s(pids: list[int]) -> float:
    """Processor time of all threads of these processes, as far as they run."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(task.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9
