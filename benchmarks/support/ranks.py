"""Ranks of a gloo group, forked from a process that has imported torch: each a process of its own, in no time."""

from __future__ import annotations

import os
import pickle
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


class RankFailed(Exception):
    """A rank raised, or did not answer in time; holds its traceback."""


def on_ranks(
    count: int, work: Callable[[int], T], *, timeout_s: float = 300.0, enter: Sequence[Callable[[], None]] = (),
    environ: Sequence[dict[str, str]] = (),
) -> list[T]:  # fmt: skip
    """What ``work`` returns on each rank, called with its number.

    Args:
        count: of ranks.
        work: runs with the group initialised and one thread.
        timeout_s: for all of it.
        enter: called first in each rank, such as to enter a network namespace.
        environ: variables of each rank.

    Raises:
        RankFailed: one of them failed.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-ranks-") as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        pipes: list[int] = []
        children: list[int] = []
        for rank in range(count):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                _be(rank, count, meeting, work, writing, enter, environ, timeout_s)
            os.close(writing)
            pipes.append(reading)
            children.append(child)
        try:
            return [_loaded(data) for data in _read(pipes, timeout_s)]
        finally:
            for child in children:
                try:
                    os.kill(child, signal.SIGKILL)
                finally:
                    os.waitpid(child, 0)


def _be(
    rank: int, count: int, meeting: str, work: Callable[[int], Any], writing: int,
    enter: Sequence[Callable[[], None]], environ: Sequence[dict[str, str]], timeout_s: float,
) -> None:  # fmt: skip
    status = 1
    try:
        if enter:
            enter[rank]()
        if environ:
            os.environ.update(environ[rank])
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=count, timeout=timedelta(seconds=timeout_s)
        )
        found = work(rank)
        data = pickle.dumps((True, found))
        dist.destroy_process_group()
        status = 0
    except BaseException:
        data = pickle.dumps((False, f"rank {rank}:\n{traceback.format_exc()}"))
    try:
        with os.fdopen(writing, "wb") as stream:
            stream.write(data)
    finally:  # nobody reads where another rank has failed first
        os._exit(status)


def _read(pipes: Sequence[int], timeout_s: float) -> list[bytes]:
    """The bytes of all pipes, as far as all end in time: the first failure ends the wait."""
    found = {pipe: bytearray() for pipe in pipes}
    is_open = set(pipes)
    until = time.monotonic() + timeout_s
    while is_open:
        ready, _, _ = select.select(list(is_open), [], [], max(0.0, until - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            found[pipe] += data
            if not data:
                is_open.discard(pipe)
                if not found[pipe] or not pickle.loads(found[pipe])[0]:
                    is_open.clear()
                    break
    for pipe in pipes:
        os.close(pipe)
    done = [bytes(found[pipe]) for pipe in pipes]
    failed = next((data for data in done if data and not _succeeded(data)), None)
    return [failed] if failed is not None else done


def _succeeded(data: bytes) -> bool:
    try:
        return bool(pickle.loads(data)[0])
    except (pickle.UnpicklingError, EOFError):
        return True  # cut short since another one failed


def _loaded(data: bytes) -> Any:
    if not data:
        raise RankFailed("a rank died, or did not answer in time")
    is_found, value = pickle.loads(data)
    if not is_found:
        raise RankFailed(value)
    return value
