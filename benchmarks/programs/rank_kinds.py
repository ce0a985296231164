"""Six small trainings under DDP, on the ranks of a launcher. Arguments: the kind, a file, and a number of steps.

Each rank writes losses, seconds of steps, and bytes of its optimizer's state, to the file with its number behind.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

if __name__ == "__main__":
    from fit_kinds import Dense, Residual, Transformer, loss_of
else:
    from benchmarks.programs.fit_kinds import Dense, Residual, Transformer, loss_of

STEPS = 20
Make = Callable[[], tuple[nn.Module, Callable[[], tuple[Tensor, Tensor]], int]]
"""A model, what draws a batch, and the micro-batches of a step."""


def _tokens(size: int, classes: int = 0) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randint(500, (size, 24))
        return x, torch.randint(classes, (size,)) if classes else x.roll(-1, 1)

    return draw


def _rows(size: int, width: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(size, width), torch.randint(10, (size,)))


def _images(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 12, 12), torch.randint(10, (size,))


def _stack(blocks: int, width: int, norm: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), *[Dense(width, norm) for _ in range(blocks)], nn.Linear(width, 10))


def _residual() -> nn.Module:
    blocks = [Residual(48) for _ in range(6)]
    return nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(48 * 144, 10))


KINDS: dict[str, Make] = {
    "decoder": lambda: (Transformer(0.1, True, 500), _tokens(6), 1),
    "tied": lambda: (Transformer(0.0, True, 500, tied=True), _tokens(6), 1),
    "encoder": lambda: (Transformer(0.1, False, 10), _tokens(8, 10), 1),
    "residual": lambda: (_residual(), lambda: _images(8), 1),
    "deep": lambda: (_stack(12, 128, True), _rows(128, 64), 1),
    "wide": lambda: (_stack(4, 384, False), _rows(64, 64), 2),
}
"""``encoder`` clips its gradients, ``wide`` adds those of two micro-batches under ``no_sync``."""
CLIPPED = ("encoder",)
Prepare = Callable[[nn.Module], tuple[nn.Module, Optimizer]]


def plainly(model: nn.Module) -> tuple[nn.Module, Optimizer]:
    """DDP and AdamW, as a program has them."""
    return DistributedDataParallel(model), torch.optim.AdamW(model.parameters(), lr=1e-3)


def local_bytes(optimizer: Optimizer) -> int:
    """Bytes of an optimizer's state on this rank."""
    found = 0
    for values in optimizer.state.values():
        for value in cast("dict[str, Any]", values).values():
            if isinstance(value, Tensor):
                own: Tensor = cast("Any", value).to_local() if hasattr(value, "to_local") else value
                found += own.numel() * own.element_size()
    return found


def _without_exchange(replica: nn.Module, *, waits: bool) -> contextlib.AbstractContextManager[None]:
    """What surrounds a micro-batch; FSDP2's module is told what DDP has a context for."""
    untyped = cast("Any", replica)
    if isinstance(replica, DistributedDataParallel):
        return untyped.no_sync() if waits else contextlib.nullcontext()
    untyped.set_requires_gradient_sync(not waits)
    return contextlib.nullcontext()


def train(kind: str, prepare: Prepare = plainly, steps: int = STEPS) -> dict[str, Any]:
    """Losses, seconds and bytes of states of a kind on this rank."""
    torch.manual_seed(0)
    model, draw, micro = KINDS[kind]()
    replica, optimizer = prepare(model)
    torch.manual_seed(1 + dist.get_rank())
    losses: list[float] = []
    seconds: list[float] = []
    for _ in range(steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        total = 0.0
        for number in range(micro):
            x, y = draw()
            with _without_exchange(replica, waits=number + 1 < micro):
                loss = loss_of(replica(x), y) / micro
                loss.backward()
            total += loss.item()
        if kind in CLIPPED:
            nn.utils.clip_grad_norm_(replica.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        losses.append(total)
    return {"losses": losses, "seconds": seconds, "states": local_bytes(optimizer)}


def main(kind: str, out: str, steps: str = str(STEPS)) -> None:
    """Trains, and writes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = train(kind, steps=int(steps))
    with open(f"{out}.{dist.get_rank()}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
