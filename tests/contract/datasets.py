"""Datasets that the cases share; at module level, so that they pickle for every start method."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Rows(Dataset[Any]):
    """Deterministic: row ``i`` is a float vector and its label."""

    def __init__(self, length: int = 23, width: int = 3) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return torch.arange(index * self.width, (index + 1) * self.width, dtype=torch.float32), int(index)


class Keyed(Dataset[Any]):
    """Items by any key, as text: samplers may yield strings, tuples and tensors."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, key: object) -> str:
        return f"{type(key).__name__}:{key}"


class Items(Dataset[Any]):
    """A list as a dataset."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class EpochRows(Dataset[Any]):
    """Has ``set_epoch``, as many training programs do; a sample shows the epoch that its copy was told."""

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.epoch, index


def draw_all() -> list[float]:
    """One draw of each main stream."""
    return [float(torch.rand(())), random.random(), float(np.random.rand())]


class Augmented(Dataset[Any]):
    """Index and a random transform from the three main streams: elastic in workers."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.tensor(draw_all())


class AugmentedCounting(Augmented):
    """The same, with a counter in ``self``: not a function of the index, so it belongs to its worker."""

    def __init__(self) -> None:
        self.calls = 0

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        self.calls += 1
        return self.calls * 1000 + index, torch.tensor(draw_all())


class PrivateGenerator(Dataset[Any]):
    """Draws from a NumPy generator of its own: each worker's copy goes its own way."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(5)

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(self.generator.normal())


class Facts(Dataset[Any]):
    """What a sample sees of its worker; the id itself only as far as the contract goes."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = get_worker_info()
        if info is None:
            return {"index": index, "worker": False}
        return {
            "index": index,
            "worker": True,
            "id in range": info.id in range(info.num_workers),
            "num_workers": info.num_workers,
            "base seed": str(info.seed - info.id),
            "is dataset": isinstance(info.dataset, Facts),
            "threads": torch.get_num_threads(),
        }


def as_is(batch: list[Any]) -> list[Any]:
    """Collates nothing."""
    return batch


def first_of(batch: list[Any]) -> Any:
    """The only sample of a batch of one."""
    return batch[0]


class Stream(IterableDataset[Any]):
    """Counts from ``start`` to ``stop``; sharded by worker where asked."""

    def __init__(self, start: int = 0, stop: int = 17, *, shard: bool = True) -> None:
        self.start, self.stop, self.shard = start, stop, shard

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None and self.shard else (0, 1)
        return iter(range(self.start + first, self.stop, step))


class SizedStream(Stream):
    """Declares a length of its own, right or wrong."""

    def __init__(self, declared: int, stop: int, *, shard: bool = True) -> None:
        super().__init__(0, stop, shard=shard)
        self.declared = declared

    def __len__(self) -> int:
        return self.declared
