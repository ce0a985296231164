"""An ordinary training script over photographs at a URL: ``python photograph_program.py s3://bucket/folder``.

It knows nothing of stoker or of a cache. Before each epoch it waits for a line, so that two runs of it can alternate.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import cv2
import fsspec
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.programs.photographs import augmented


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """JPEGs below a URL, cropped at random; float32 [3, 224, 224] and a number."""

    def __init__(self, url: str, count: int) -> None:
        self._files, folder = fsspec.url_to_fs(url)
        self._paths = sorted(self._files.glob(f"{folder}/*.jpg"))
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = index % len(self._paths)
        with self._files.open(self._paths[number], "rb") as file:
            data = np.frombuffer(file.read(), np.uint8)
        image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return augmented(image), number


def main() -> None:
    """Runs an epoch per line of its input; prints how long each took (seconds) and a digest of what it saw."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Photographs(args.url, args.count)
    loader = DataLoader(data, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True)
    for _ in sys.stdin:
        begun, seen = time.perf_counter(), 0
        for _, labels in loader:
            seen += int(labels.sum())
        print(f"epoch {time.perf_counter() - begun} {seen}", flush=True)


if __name__ == "__main__":
    main()
