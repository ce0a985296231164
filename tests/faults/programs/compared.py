"""A loop that torch's own workers serve in turns with ours; waits in one of torch's until it is told to go on."""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset[torch.Tensor]):
    """Sample i is i squared."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.full((4,), float(index * index))


if __name__ == "__main__":
    total = 0.0
    for step, batch in enumerate(DataLoader(Squares(), batch_size=4, num_workers=2)):
        total += float(batch.sum())
        if step == 13:
            print("at torch's turn", flush=True)
            sys.stdin.readline()
    print("total", total, flush=True)
