"""A program for `stoker run --training-workers`: continues from its checkpoint; items and steps sleep (emulated).

Arguments: seconds of an item, then those of a step of one, two, three and four ranks, communication included.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CHECKPOINT = Path("checkpoint.pt")
EVERY = 12
"""Steps between checkpoints."""


class Items(Dataset[torch.Tensor]):
    """Samples that take a time, nearly all of it waiting."""

    def __init__(self, item_s: float) -> None:
        self._item_s = item_s

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._item_s)
        return torch.full((4,), float(index))


def main(item_s: float, steps_s: list[float]) -> None:
    """Trains until it is ended."""
    dist.init_process_group("gloo")
    step_s = steps_s[dist.get_world_size() - 1]
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step, batch in enumerate(DataLoader(Items(item_s), batch_size=1, num_workers=1), 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        # What the real step takes on this machine is part of the emulated one.
        time.sleep(max(0.0, step_s - (time.perf_counter() - began)))
        optimizer.step()
        if step % EVERY == 0 and dist.get_rank() == 0:
            part = CHECKPOINT.with_suffix(".part")
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, part)
            os.replace(part, CHECKPOINT)


if __name__ == "__main__":
    main(float(sys.argv[1]), [float(word) for word in sys.argv[2:]])
