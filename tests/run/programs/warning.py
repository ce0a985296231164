"""Shows each warning with the place that it names, once per process that it is raised in, and what profiles call it."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

PID = os.getpid()


def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
    who = "program" if os.getpid() == PID else "worker"
    line = f"{who} {filename}:{lineno} {category.__name__} {str(message)[:40]}\n"
    os.write(1, line.encode())  # whole, beside those of other processes


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), 1.0])


class Telling(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        warnings.warn("in a sample", stacklevel=2)
        return super().__getitem__(index)


class Whole(Rows):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        warnings.warn("in a whole batch", stacklevel=2)
        return [self[index] for index in indices]


class Stream(IterableDataset[torch.Tensor]):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        warnings.warn("at a stream's beginning", stacklevel=2)
        self.count = -1
        return self

    def __next__(self) -> torch.Tensor:
        self.count += 1
        warnings.warn("in a stream", stacklevel=2)
        if self.count == 8:
            raise StopIteration
        return torch.tensor(self.count)


def collate(batch: Any) -> Any:
    warnings.warn("in collate_fn", stacklevel=2)
    return default_collate(batch)


def begin(_: int) -> None:
    warnings.warn("in worker_init_fn", stacklevel=2)


def step(batch: torch.Tensor) -> None:
    """Calls of torch that warn: in Python, in C++, and through a module of torch's."""
    functional.softmax(batch)
    torch.tensor(batch)
    torch.nn.MSELoss()(batch, batch[:1])
    torch.add(batch, batch, out=torch.empty(1))


many = (os.cpu_count() or 1) + 1
loaders: dict[str, dict[str, Any]] = {
    "too many workers, pinned memory": {"dataset": Rows(), "num_workers": many, "pin_memory": True},
    "persistent": {"dataset": Rows(), "num_workers": many, "pin_memory": True, "persistent_workers": True},
    "no workers, pinned memory": {"dataset": Rows(), "pin_memory": True, "pin_memory_device": "cuda"},
    "samples": {"dataset": Telling(), "num_workers": 1, "collate_fn": collate, "worker_init_fn": begin},
    "single samples": {"dataset": Telling(), "num_workers": 1, "batch_size": None},
    "whole batches": {"dataset": Whole(), "num_workers": 1},
    "stream": {"dataset": Stream(), "num_workers": 1, "collate_fn": collate},
    "single items of a stream": {"dataset": Stream(), "num_workers": 1, "batch_size": None},
    "stream, no workers": {"dataset": Stream()},
}


def main() -> None:
    warnings.showwarning = show
    warnings.simplefilter("always")
    for name, options in loaders.items():
        print(name, flush=True)
        batched = {"batch_size": 8} if not isinstance(options["dataset"], IterableDataset) else {"batch_size": 2}
        loader = DataLoader(**{**batched, **options})
        if isinstance(options["dataset"], Stream):
            len(loader)
        for _epoch in range(2):
            for _ in loader:
                pass
    print("in the loop", flush=True)
    for batch in DataLoader(Rows(), batch_size=2, num_workers=1):
        step(batch)
    print("filtered", flush=True)
    warnings.filterwarnings("ignore", module="torch")
    for batch in DataLoader(Telling(), num_workers=many, pin_memory=True):
        step(batch)
    print("profiled", flush=True)
    with torch.profiler.profile() as profile:
        for workers in (0, 1):
            for _ in DataLoader(Rows(), batch_size=8, num_workers=workers):
                pass
    for row in profile.key_averages():
        if "DataLoader" in row.key:
            print(row.key, row.count)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
