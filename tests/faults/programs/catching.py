"""Catches Ctrl-C while it waits for a batch, three times, as a notebook does, and iterates again."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset[torch.Tensor]):
    """The third batch takes long."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 12 and slow:
            time.sleep(60.0)
        return torch.full((4,), float(index))


slow = True
loader = DataLoader(Slow(), batch_size=4, num_workers=2)
for _ in range(3):
    try:
        for batch in loader:
            if batch[0, 0] == 8:
                print("waiting", flush=True)
    except KeyboardInterrupt:
        print("caught", flush=True)
slow = False
print("sum", sum(float(batch.sum()) for batch in loader))
