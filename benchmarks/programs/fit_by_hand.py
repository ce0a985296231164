"""Trainings of `fit_kinds` as people set them up: which blocks are recomputed, and when the optimizer steps.

As a program, prints the seconds of a later step. Arguments: the kind and the set-up.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.programs.fit_kinds import KINDS, loss_of
from stoker.core.patching import Patches
from stoker.records.fitting import Keeps
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.optimizing import UsedUp
from stoker.train.fitting.recomputing import recompute

LATER = 4
"""Steps that are over before seconds count: three are counted."""

Choose = Callable[[list[nn.Module]], list[nn.Module]]
HAND: dict[str, tuple[Choose, Keeps, bool]] = {
    "plain": (lambda blocks: [], "nothing", False),
    "all": (lambda blocks: blocks, "nothing", False),
    "every second": (lambda blocks: blocks[::2], "nothing", False),
    "every third": (lambda blocks: blocks[::3], "nothing", False),
    "first half": (lambda blocks: blocks[: len(blocks) // 2], "nothing", False),
    "products": (lambda blocks: blocks, "products", False),
    "used up": (lambda blocks: [], "nothing", True),
    "all, used up": (lambda blocks: blocks, "nothing", True),
    "second, used up": (lambda blocks: blocks[::2], "nothing", True),
    "products, used up": (lambda blocks: blocks, "products", True),
}
"""Which blocks a person recomputes, what they keep, and whether the optimizer steps inside the backward pass."""


def by_hand(kind: str, setup: str, *, counts: bool) -> tuple[list[float], int, float]:
    """Losses, counted peak (0 if it is not counted) and seconds of a later step of a set-up."""
    choose, keeps, used_up = HAND[setup]
    torch.manual_seed(0)
    model, data, size = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    used = UsedUp(optimizer) if used_up else None
    blocks = [each for each in model.modules() if type(each).__name__ in ("Attention", "Residual", "Dense")]
    batches = list(DataLoader(data, batch_size=size))
    losses: list[float] = []
    seconds: list[float] = []
    with Patches("set-up by hand") as patches, LiveBytes() if counts else contextlib.nullcontext() as live:
        for block in choose(blocks):
            recompute(block, keeps, patches)
        while batches:  # as the program does, it holds one batch at a time
            x, y = batches.pop(0)
            begun = time.perf_counter()
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - begun)
            losses.append(loss.item())
    if used is not None:
        used.close()
    return losses, live.peak if live is not None else 0, statistics.median(seconds[LATER:])


def main(kind: str, setup: str) -> None:
    """Trains."""
    torch.set_num_threads(1)
    print(by_hand(kind, setup, counts=False)[2])


if __name__ == "__main__":
    main(*sys.argv[1:])
