"""Exchanges of two gloo ranks on one device, as a program of its own: what each case found on each rank, as JSON.

Arguments: the device, ``cuda`` or ``cpu``; then cases. Ranks are forked before anything has touched the device. With
``nccl`` for the device there is one rank, whose collectives run on NCCL's streams.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by the parent, once: the first step of an optimizer loads it
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.run.exchanging.serving import planner
from stoker.train.exchanging import calling
from stoker.train.exchanging.replica import ReplicaExchange
from stoker.train.exchanging.weights import hash_of

STEPS, BATCH, WORDS = 24, 16, 400


class Model(nn.Module):
    """A table and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 32)
        self.first = nn.Linear(32, 256)
        self.last = nn.Linear(256, 10)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(self.table(numbers))))


@dataclass
class Trained:
    """Losses of a rank, the hash of its weights, what its exchange says, and waits for the device in a late step."""

    losses: list[float]
    weights: int
    replica: ReplicaExchange | None
    waits: int


Serve = Callable[[DistributedDataParallel], ReplicaExchange | None]


def train(
    device: str, rank: int, serve: Serve, *, steps: int = STEPS, halves: bool = False, aside: bool = False
) -> Trained:
    """Trains the model on numbers of the rank.

    Args:
        device: of the model.
        rank: of this process.
        serve: gives DDP its exchange.
        steps: of training.
        halves: in bfloat16, by autocast.
        aside: on a stream of its own.
    """
    is_cuda = device == "cuda"
    torch.manual_seed(0)
    with torch.cuda.stream(torch.cuda.Stream()) if aside and is_cuda else contextlib.nullcontext():
        ddp = DistributedDataParallel(Model().to(device), bucket_cap_mb=0.05)
        replica = serve(ddp)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        drawn = torch.Generator().manual_seed(100 + rank)
        losses: list[torch.Tensor] = []
        waits = 0
        for step in range(steps):
            numbers = torch.randint(WORDS, (BATCH,), generator=drawn).to(device)
            with _counted(is_cuda and step == steps - 1) as caught:
                optimizer.zero_grad()
                with torch.autocast(device, torch.bfloat16, enabled=halves):
                    loss = nn.functional.cross_entropy(ddp(numbers), numbers % 10)
                loss.backward()
                optimizer.step()
            waits = sum("synchroniz" in str(each.message) for each in caught)
            losses.append(loss.detach())
        found = [float(each) for each in losses]
        return Trained(found, hash_of(list(ddp.parameters())), replica, waits)


@contextlib.contextmanager
def _counted(is_on: bool) -> Any:
    """Warnings of torch where the host waits for the device."""
    if not is_on:
        yield []
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _compared(device: str, rank: int, plan: dict[str, str] | None, **options: Any) -> dict[str, Any]:
    def served(ddp: DistributedDataParallel) -> ReplicaExchange:
        if plan is None:
            return calling.serve(ddp, planner(), probes=True)
        return calling.exchange(ddp, plan)

    plain = train(device, rank, lambda ddp: None, **options)
    own = train(device, rank, served, **options)
    assert own.replica is not None
    record = own.replica.record()
    assert record is not None
    own.replica.close()
    return {
        "plain": plain.losses, "losses": own.losses, "same": plain.weights == own.weights, "weights": own.weights,
        "methods": {each.module: each.method for each in record.agreed.methods}, "notes": record.notes,
        "steps": {each.weight: each.steps for each in record.counts}, "waits": own.waits - plain.waits,
        "doubts": {each.weight: each.doubts for each in record.counts if each.doubts}, "gain": record.gain,
    }  # fmt: skip


CASES: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "all_reduce": lambda device, rank: _compared(device, rank, {}),
    "late": lambda device, rank: _compared(device, rank, {"first": "late", "last": "late"}),
    "rows": lambda device, rank: _compared(device, rank, {"table": "rows", "first": "late"}),
    "aside": lambda device, rank: _compared(device, rank, {"table": "rows", "first": "late"}, aside=True),
    "halves": lambda device, rank: _compared(device, rank, {"first": "late", "last": "late"}, halves=True),
    "ring": lambda device, rank: _compared(device, rank, {"first": "ring", "last": "late"}),
    "half": lambda device, rank: _compared(device, rank, {"first": "half"}),
    "power": lambda device, rank: _compared(device, rank, {"first": "power"}),
    "planned": lambda device, rank: _compared(device, rank, None, steps=80),
}


def _on_nccl(names: list[str]) -> list[list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{Path(folder) / 'meeting'}", rank=0, world_size=1)
        try:
            return [[CASES[name]("cuda", 0) for name in names]]
        finally:
            dist.destroy_process_group()


def main(device: str, names: list[str]) -> None:
    """Prints what the ranks found: a list of cases for each rank."""
    if device == "nccl":
        found = _on_nccl(names)
    else:
        found = on_ranks(2, lambda rank: [CASES[name](device, rank) for name in names], timeout_s=160)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
