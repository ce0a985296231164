"""Real ranks of gloo, as processes: the same sums as torch's, a killed and a stopped rank, ends of groups."""

from __future__ import annotations

import datetime
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed

from stoker.core.errors import ExchangeError
from stoker.core.patching import patched
from stoker.train.ring.groups import broadcast, exchange_of
from stoker.train.ring.synchronise import synchronise

pytestmark = pytest.mark.integration
TIMEOUT_S = 5.0


def _rank(rank: int, size: int, meeting: str, call: Callable[[int], Any], said: Connection) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    torch.set_num_threads(1)
    try:
        distributed.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=size,
            timeout=datetime.timedelta(seconds=TIMEOUT_S),
        )  # fmt: skip
        said.send(call(rank))
    except BaseException:
        said.send(traceback.format_exc())
    said.close()
    os._exit(0)


def ranks(size: int, folder: Path, call: Callable[[int], Any], lost: int = -1) -> list[Any]:
    """What a call returns on each rank, forked from this process; None for a lost one."""
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=_rank, args=(rank, size, str(folder / "meeting"), call, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()
    found = [None if rank == lost else reader.recv() for rank, (reader, _) in enumerate(pipes)]
    for process in processes:
        process.kill()
        process.join()
    for reader, _ in pipes:
        reader.close()
    return found


def _same(rank: int) -> tuple[bool, bool, bool, int]:
    own = torch.randn(5000, generator=torch.Generator().manual_seed(rank))
    by_torch = own.clone()
    exchange_of().start(own, "layer").wait()
    distributed.all_reduce(by_torch)
    model = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.BatchNorm1d(7))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 3)
    synchronise(model)
    synced = all(bool((tensor == 3).all()) for tensor in model.state_dict().values())
    copied = torch.full((10,), float(rank))
    broadcast([copied], source=1)
    distributed.destroy_process_group()
    left = sum(thread.name.startswith("stoker") for thread in threading.enumerate())
    closed = not any("process group" in purpose for purpose in patched())
    return torch.allclose(own, by_torch, atol=1e-5), synced and bool((copied == 1).all()), closed, left


def test_sums_as_torch_and_nothing_is_left_of_a_destroyed_group(tmp_path: Path) -> None:
    assert ranks(3, tmp_path, _same) == [(True, True, True, 0)] * 3


def _lost(number: int) -> Callable[[int], str]:
    def call(rank: int) -> str:
        exchange = exchange_of()
        exchange.all_reduce(torch.ones(10))
        if rank == 1:
            os.kill(os.getpid(), number)
        exchange.step = 4
        try:
            exchange.start(torch.ones(100_000), "head").wait()
        except ExchangeError as error:
            return f"{error.fields}"
        return "summed"

    return call


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_is_named_by_all_others(number: int, tmp_path: Path) -> None:
    expected = "{'rank': 1, 'layer': 'head', 'step': 4}"
    assert ranks(3, tmp_path, _lost(number), lost=1) == [expected, None, expected]


def _differing(rank: int) -> str:
    try:
        synchronise(torch.nn.Linear(3, 3 + rank))
    except ExchangeError as error:
        return str(error)
    return "synchronised"


def test_modules_that_differ_are_named(tmp_path: Path) -> None:
    for said in ranks(2, tmp_path, _differing):
        assert "rank 1 has others than rank 0" in said
