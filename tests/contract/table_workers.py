"""Cases on the loader's options and on what samples, collate functions and init functions see of their worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate, get_worker_info

from .datasets import EpochRows, Facts, Items, Rows, as_is
from .registry import case
from .transcript import Transcript


class Scaler:
    """A collate function with state: an object, or its bound method."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def collate(self, batch: list[Any]) -> Any:
        x, y = default_collate(batch)
        return x * self.factor, y

    __call__ = collate


def closure(shift: int) -> Callable[[list[Any]], Any]:
    """A collate function that is a closure."""

    def collate(batch: list[Any]) -> list[Any]:
        return [y + shift for _, y in batch]

    return collate


@case("options")
def collate_functions() -> Transcript:
    t = Transcript()
    functions: list[Any] = [lambda b: {"n": len(b), "x": b[0][0]}, closure(5), Scaler(2.0).collate, Scaler(3.0), tuple]
    for workers in (0, 2):
        for function in functions:
            t.epoch(DataLoader(Rows(7), batch_size=3, collate_fn=function, num_workers=workers))
    return t


@case("options")
def pin_memory_on_cpu() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(Rows(9), batch_size=4, shuffle=True, num_workers=workers, pin_memory=True))
    return t


class Pinnable:
    """A batch with a ``pin_memory`` of its own."""

    def __init__(self, batch: list[Any]) -> None:
        self.x = default_collate(batch)
        self.pinned = False

    def pin_memory(self) -> Pinnable:
        self.pinned = True
        return self


@case("options")
def pin_memory_of_custom_batch() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Rows(6), batch_size=4, num_workers=workers, pin_memory=True, collate_fn=Pinnable))
    return t


@case("options")
def timeout_not_reached() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Rows(9), batch_size=2, num_workers=2, timeout=20))
    return t


class Blocking(Dataset[Any]):
    """One sample that does not come in time."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 2:
            threading.Event().wait(2.5)
        return index


@case("options")
def timeout_reached() -> Transcript:
    t = Transcript()
    iterator = t.open(DataLoader(Blocking(), batch_size=1, num_workers=1, timeout=1.5))
    t.take(iterator)
    return t


@case("options")
def worker_info_facts() -> Transcript:
    t = Transcript()
    for workers in (0, 1, 3):
        t.epochs(DataLoader(Facts(), batch_size=2, shuffle=True, collate_fn=as_is, num_workers=workers))
    t.event("in the main process", get_worker_info() is None)
    return t


@case("options")
def worker_info_facts_of_user_generator() -> Transcript:
    t = Transcript()
    own = torch.Generator().manual_seed(3)
    t.epochs(DataLoader(Facts(), batch_size=2, collate_fn=as_is, num_workers=2, generator=own), own)
    return t


def facts_in_collate(batch: list[Any]) -> list[Any]:
    info = get_worker_info()
    return [batch, info is None or info.id in range(info.num_workers), None if info is None else info.num_workers]


@case("options")
def worker_info_in_collate() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Rows(6), batch_size=2, collate_fn=facts_in_collate, num_workers=workers))
    return t


class ByWorker(Dataset[Any]):
    """Shows exactly which worker made a sample, and the state that the worker's init function left."""

    def __init__(self) -> None:
        self.offset = -1

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> tuple[int, int, int, int]:
        info = get_worker_info()
        assert info is not None
        return index, info.id, self.offset, info.seed % 1000


def set_offset(worker_id: int) -> None:
    """An init function that changes the worker's copy of the dataset."""
    info = get_worker_info()
    assert info is not None
    info.dataset.offset = 1000 * (worker_id + 1)  # type: ignore[attr-defined]


@case("options")
def worker_init_changes_the_copy() -> Transcript:
    """Batch k comes from worker k mod W, each with its own copy."""
    t = Transcript()
    dataset = ByWorker()
    for workers in (2, 3):
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, worker_init_fn=set_offset, collate_fn=as_is)
        t.epochs(loader)
    t.event("offset in the main process", dataset.offset)
    return t


class SeededByInit(Dataset[Any]):
    """Draws from NumPy's main stream, as an init function seeded it."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(np.random.rand())


def seed_numpy(worker_id: int) -> None:
    """The recipe of countless scripts."""
    np.random.seed(worker_id)


@case("options")
def worker_init_seeds_numpy() -> Transcript:
    """An init function that seeds: its seeds are the program's wish, so values are equal in full."""
    t = Transcript()
    loader = DataLoader(SeededByInit(), batch_size=2, num_workers=2, worker_init_fn=seed_numpy)
    t.epochs(loader)
    return t


class DefaultDtype(Rows):
    """Makes tensors of the default dtype."""

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), index


@case("options")
def worker_init_lambda_and_global_effect() -> Transcript:
    """Samples are of the default dtype of their worker."""
    t = Transcript()
    init = lambda _: torch.set_default_dtype(torch.float64)  # noqa: E731 - lambdas are what scripts pass here
    for function in (None, init):
        t.epoch(DataLoader(DefaultDtype(6), batch_size=2, num_workers=2, worker_init_fn=function, collate_fn=as_is))
    t.event("default dtype", str(torch.get_default_dtype()))
    return t


@case("options")
def persistent_workers() -> Transcript:
    t = Transcript()
    own = torch.Generator().manual_seed(4)
    t.epochs(DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True), num=3, draw=True)
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True, generator=own)
    t.epochs(loader, own, num=3)
    return t


@case("options")
def set_epoch_persistent() -> Transcript:
    """Persistent workers keep the dataset as it was at the first iteration."""
    t = Transcript()
    dataset = EpochRows()
    loader = DataLoader(dataset, batch_size=3, num_workers=2, persistent_workers=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        t.epoch(loader)
    return t


@case("options")
def set_epoch_not_persistent() -> Transcript:
    t = Transcript()
    dataset = EpochRows()
    for workers in (0, 2):
        loader = DataLoader(dataset, batch_size=3, num_workers=workers)
        for epoch in range(3):
            dataset.set_epoch(epoch)
            t.epoch(loader)
    return t


@case("options")
def persistent_iterator_is_one_object() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(12), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    first = t.open(loader)
    t.take(first, stop=2)
    second = t.open(loader)
    t.event("same object", first is second)
    t.take(second)
    t.event("again", next(first, "exhausted"))
    t.epoch(loader)
    return t


@case("options", equal="unordered")
def out_of_order() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(25), batch_size=2, shuffle=True, num_workers=2, in_order=False)
    t.epoch(loader)
    t.rng("end")
    return t


@case("options")
def out_of_order_without_workers() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Rows(9), batch_size=2, shuffle=True, in_order=False))
    return t


class Batched(Rows):
    """Has ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(torch.tensor(indices), index) for index in indices]


@case("options")
def getitems() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(Batched(10), batch_size=3, shuffle=True, num_workers=workers))
        t.epoch(DataLoader(Batched(3), batch_size=None, num_workers=workers))
    return t


@case("options")
def duck_typed_dataset() -> Transcript:
    """A list, a tensor, an array and a dict are datasets too."""
    t = Transcript()
    datasets: list[Any] = [[1, 2, 3], torch.arange(6).reshape(3, 2), np.arange(3.0), {0: "a", 1: "b", 2: "c"}, "abc"]
    for workers in (0, 2):
        for dataset in datasets:
            t.epoch(DataLoader(dataset, batch_size=2, num_workers=workers))
    return t


@case("options")
def attributes_of_loader() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2)
    for _ in range(2):
        t.event("public", sorted(name for name in vars(loader) if not name.startswith("_")))
        t.event("type", [type(loader).__module__, type(loader).__qualname__, isinstance(loader, DataLoader)])
        t.event("state_dict", [hasattr(loader, "state_dict"), hasattr(iter(loader), "state_dict")])
        t.event("options", [loader.batch_size, loader.num_workers, loader.prefetch_factor, loader.timeout])
        t.event("samplers", [type(loader.sampler).__name__, type(loader.batch_sampler).__name__])
        t.epoch(loader)
    t.attempt(lambda: setattr(loader, "batch_size", 5))
    loader.timeout = 7
    t.epoch(loader)
    return t


@case("options")
def constructor_errors() -> Transcript:
    t = Transcript()
    wrong: list[dict[str, Any]] = [
        {"num_workers": -1}, {"timeout": -1}, {"prefetch_factor": 2}, {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]}, {"batch_sampler": [[1]], "batch_size": 2}, {"batch_size": 0},
        {"batch_size": None, "drop_last": True}, {"num_workers": 2, "multiprocessing_context": "nonsense"},
        {"multiprocessing_context": "fork"},
    ]  # fmt: skip
    for options in wrong:
        t.attempt(lambda options=options: DataLoader(Rows(), **options))
    return t


@case("options")
def options_changed_after_construction() -> Transcript:
    """``num_workers`` and ``collate_fn`` may be set later, and count from the next iteration on."""
    t = Transcript()
    loader = DataLoader(Rows(8), batch_size=2)
    t.epoch(loader)
    loader.num_workers = 2
    loader.prefetch_factor = 2
    t.epoch(loader)
    loader.collate_fn = as_is
    t.epoch(loader)
    loader.num_workers = 0
    t.epoch(loader)
    return t


class Inner(Dataset[Any]):
    """Uses a loader of its own inside a sample."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[Any]:
        return [index, list(DataLoader(Rows(4), batch_size=2, shuffle=False))]


@case("options")
def loader_within_a_dataset() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Inner(), batch_size=None, num_workers=workers))
    return t


@case("options")
def worker_started_from_items_of_views() -> Transcript:
    """A dataset that holds one large tensor and hands out views of it."""
    base = torch.arange(60.0).reshape(20, 3)
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Items(list(base)), batch_size=6, num_workers=workers))
        t.epoch(DataLoader(Items(list(base)), batch_size=None, num_workers=workers))
    return t


class Seeds(Rows):
    """Reads torch's seed, and draws nothing."""

    def __getitem__(self, index: int) -> Any:
        return torch.initial_seed() if get_worker_info() is not None else 0


def _seeded(_: int) -> None:
    torch.manual_seed(12345)


@case("options")
def seed_that_is_read() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Seeds(12), batch_size=2, num_workers=2, worker_init_fn=_seeded))
    return t
