"""An ordinary program whose batches are large, or whose dataset is: says what it read and how long its loop took.

Run as ``python memory_program.py KIND SCALE``; imports nothing of stoker.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

KINDS = {
    "240MB": (240_000_000, 8, 1),
    "40MB": (40_000_000, 48, 1),
    "1MB": (1_000_000, 2400, 8),
    "10kB": (10_000, 120_000, 32),
}
"""Bytes of a sample, samples, samples in a batch."""
NUM_ROWS = 2_000_000


class Blocks(Dataset[torch.Tensor]):
    """Samples of one size, filled with their number."""

    def __init__(self, size_bytes: int, count: int) -> None:
        self._size, self._count = size_bytes // 4, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self._size,), float(index))


class Rows(Dataset[Any]):
    """Two million dicts; workers copy the pages of those that they read, since reading counts references."""

    def __init__(self, count: int) -> None:
        self._rows = [{"id": i, "label": i % 10, "text": f"row {i}"} for i in range(NUM_ROWS)]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        row = self._rows[index * 7919 % NUM_ROWS]
        return row["id"], row["label"], len(row["text"])


def main(kind: str, scale: float) -> None:
    """Reads all batches with two workers."""
    torch.set_num_threads(1)
    if kind == "dicts":
        data: Dataset[Any] = Rows(int(64 * 2400 * scale))
        batch_size = 64
    else:
        size_bytes, count, batch_size = KINDS[kind]
        data = Blocks(size_bytes, max(8, int(count * scale)))
    total, batches = 0.0, 0
    begun = time.perf_counter()
    for batch in DataLoader(data, batch_size, num_workers=2):
        first = batch[0] if kind == "dicts" else batch
        total += float(first.reshape(-1)[0])
        batches += 1
    print(f"batches {batches} total {total:.0f} loop_s {time.perf_counter() - begun:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
