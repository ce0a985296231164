"""Ranks as threads of one process: real sockets on loopback, and a gathering by memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from stoker.train.ring.transport import RingExchange

T = TypeVar("T")


class Table:
    """Where threads gather bytes, one row each."""

    def __init__(self, size: int) -> None:
        self.rows = [b""] * size
        self.barrier = threading.Barrier(size, timeout=30)


class Seat:
    """One thread's place at the table: an assembly."""

    def __init__(self, table: Table, rank: int, ranks: Sequence[int]) -> None:
        self._table = table
        self.rank = rank
        self.ranks = ranks

    def gather(self, data: bytes) -> list[bytes]:
        self._table.rows[self.rank] = data
        self._table.barrier.wait()
        rows = list(self._table.rows)
        self._table.barrier.wait()
        return rows


class Ranks:
    """Exchanges of all ranks of one ring, each called in a thread of its own."""

    def __init__(self, size: int, timeout_s: float = 20.0, **options: Any) -> None:
        self.size = size
        self._pool = ThreadPoolExecutor(size)
        table, numbers = Table(size), options.pop("numbers", range(size))
        seat = options.pop("seat", Seat)
        seats = [seat(table, rank, numbers) for rank in range(size)]
        options.setdefault("find_address", lambda: "127.0.0.1")
        self.exchanges = self.all(lambda rank: RingExchange(seats[rank], timeout_s=timeout_s, **options))

    def all(self, call: Callable[[int], T]) -> list[T]:
        """What a call returns on each rank."""
        waiting = [self._pool.submit(call, rank) for rank in range(self.size)]
        errors = [each.exception(60) for each in waiting]
        for error in errors:
            if error is not None:
                raise error
        return [each.result() for each in waiting]

    def close(self) -> None:
        self.all(lambda rank: self.exchanges[rank].close())
        self._pool.shutdown()


@contextmanager
def ring(size: int, timeout_s: float = 20.0, **options: Any) -> Iterator[Ranks]:
    """Connected ranks; closed at the end."""
    ranks = Ranks(size, timeout_s, **options)
    try:
        yield ranks
    finally:
        ranks.close()
