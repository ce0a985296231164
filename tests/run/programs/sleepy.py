"""A loop whose one declared worker makes batches at half the pace of the steps; prints a checksum of each batch."""

from __future__ import annotations

import time
import zlib

import torch
from torch.utils.data import DataLoader, Dataset


class Sleepy(Dataset[torch.Tensor]):
    """Samples that wait, as if for storage."""

    def __len__(self) -> int:
        return 432

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.015)
        return torch.arange(float(index), index + 16.0)


if __name__ == "__main__":
    torch.manual_seed(1)
    for batch in DataLoader(Sleepy(), batch_size=2, shuffle=True, num_workers=1):
        time.sleep(0.011)  # three workers would do
        print(zlib.crc32(batch.numpy().tobytes()), torch.rand(1).item())
