"""Datasets that are pure, that depend on their worker, and that do harm when told to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

Harm = Callable[[], object]


def in_worker() -> bool:
    """Whether this is a data worker (a worker of torch's own counts as well)."""
    return get_worker_info() is not None


def once(folder: Path, name: str) -> bool:
    """True for the first caller among all processes."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die() -> None:
    """As the kernel's out-of-memory killer ends a process."""
    os.kill(os.getpid(), 9)


class Numbers(Dataset[torch.Tensor]):
    """Sample i is a pure function of i.

    Args:
        length: number of samples.
        cost_s: time of a sample, so that something is in flight whenever a test strikes.
    """

    def __init__(self, length: int, cost_s: float = 0.0) -> None:
        self.length = length
        self.cost_s = cost_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.cost_s:
            time.sleep(self.cost_s)
        return torch.arange(8, dtype=torch.float64) * (index + 1) + index / 7


class Harmful(Numbers):
    """Does something to its worker at some samples.

    Args:
        length: number of samples.
        harm: what to do, by index; in data workers only.
        folder: when given, each sample does it only the first time, whichever process asks.
    """

    def __init__(self, length: int, harm: dict[int, Harm], folder: Path | None = None, cost_s: float = 0.0) -> None:
        super().__init__(length, cost_s)
        self.harm = harm
        self.folder = folder
        self.paths = [f"photographs/{number}.jpg" for number in range(length)]

    def __getitem__(self, index: int) -> torch.Tensor:
        harm = self.harm.get(index)
        if harm is not None and in_worker() and (self.folder is None or once(self.folder, f"harm-{index}")):
            harm()
        return super().__getitem__(index)


class PrivateRng(Numbers):
    """Augments with a generator of its own: another batch in another worker, so only pinned workers give torch's."""

    def __init__(self, length: int, cost_s: float = 0.0) -> None:
        super().__init__(length, cost_s)
        self.rng = np.random.default_rng(3)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + float(self.rng.random())


class RandomPinned(PrivateRng):
    """Draws from its own generator and from the global streams."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) * torch.rand(8, dtype=torch.float64) + float(np.random.random())


class Shards(IterableDataset[torch.Tensor]):
    """A stream with one shard for each worker, shuffled by the worker's own random stream."""

    def __init__(self, length: int, cost_s: float = 0.0) -> None:
        self.length = length
        self.cost_s = cost_s

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        mine = list(range(first, self.length, step))
        for place in torch.randperm(len(mine)).tolist():
            if self.cost_s:
                time.sleep(self.cost_s)
            yield torch.full((6,), float(mine[place])) + torch.rand(6)


class Sized(Dataset[torch.Tensor]):
    """Samples whose sizes are given in bytes."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.sizes[index],), index % 251, dtype=torch.uint8)


class Leaky(Numbers):
    """Keeps a megabyte of every sample, in the process that made it."""

    kept: ClassVar[list[Any]] = []

    def __getitem__(self, index: int) -> torch.Tensor:
        if in_worker():
            Leaky.kept.append(np.ones(1 << 20, np.uint8))
        return super().__getitem__(index)


def first_sample(batch: list[torch.Tensor]) -> torch.Tensor:
    """A collate function for batches of one sample."""
    return batch[0]
