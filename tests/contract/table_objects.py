"""Cases on datasets that are hard to look into: whatever is learned about one, the program must not notice."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from .datasets import Rows
from .registry import case
from .transcript import Transcript


def both(dataset: Any, **options: Any) -> Transcript:
    """Two epochs without workers and with two."""
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(dataset, batch_size=2, shuffle=True, num_workers=workers, **options))
    return t


class Hostile(Rows):
    """Raises when it is compared, hashed, shown, tested for truth or pickled."""

    def refuse(self, *_: object) -> NoReturn:
        raise AssertionError("the dataset was touched")

    __eq__ = __ne__ = __hash__ = __repr__ = __str__ = __bool__ = refuse  # type: ignore[assignment]
    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = __sizeof__ = __dir__ = refuse  # type: ignore[assignment]


@case("objects")
def dataset_that_refuses_to_be_touched() -> Transcript:
    return both(Hostile(7))


class Delegating:
    """Hands every attribute on to what it wraps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


@case("objects")
def dataset_that_delegates() -> Transcript:
    return both(Delegating(Delegating(Rows(7))))


class Eager(Rows):
    """Has properties that count, cost or fail when somebody looks at them."""

    looked = 0

    @property
    def size(self) -> int:
        type(self).looked += 1
        return self.looked

    @property
    def broken(self) -> NoReturn:
        raise RuntimeError("not loaded yet")


@case("objects")
def dataset_with_properties() -> Transcript:
    Eager.looked = 0
    t = both(Eager(7))
    t.event("looked", Eager.looked)
    return t


class Slots(Dataset[Any]):
    """No dict at all."""

    __slots__ = ("base",)

    def __init__(self, base: int) -> None:
        self.base = base

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return self.base + index


@case("objects")
def dataset_with_slots() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        dataset = Slots(10)
        loader = DataLoader(dataset, batch_size=2, num_workers=workers)
        t.epoch(loader)
        dataset.base = 500
        t.epoch(loader)
    return t


class Unpicklable(Rows):
    """Holds what cannot be pickled: locks, threads' events, lambdas, generators, a database, a thread-local."""

    def __init__(self) -> None:
        super().__init__(8)
        self.lock = threading.Lock()
        self.event = threading.Event()
        self.function = lambda i: i * 3
        self.source = (i for i in range(3))
        self.local = threading.local()
        self.database = sqlite3.connect(":memory:", check_same_thread=False)

    def __getitem__(self, index: int) -> int:
        with self.lock:
            return self.function(index)


@case("objects")
def dataset_with_unpicklable_parts() -> Transcript:
    dataset = Unpicklable()
    t = both(dataset)
    t.event("its generator", next(dataset.source))
    dataset.database.close()
    return t


class Linked:
    """A link of a long chain."""

    def __init__(self, before: Linked | None) -> None:
        self.before = before


class Deep(Rows):
    """Nested more deeply than the recursion limit, and cyclic."""

    def __init__(self) -> None:
        super().__init__(6)
        self.chain: Linked | None = None
        for _ in range(3000):
            self.chain = Linked(self.chain)
        self.nested: list[Any] = []
        for _ in range(3000):
            self.nested = [self.nested]
        self.me = {"myself": [self]}


@case("objects")
def dataset_nested_deeply() -> Transcript:
    dataset = Deep()
    t = both(dataset)
    while dataset.chain is not None:  # taken apart link by link: freeing it at once recurses in C
        dataset.chain = dataset.chain.before
    return t


class Large(Rows):
    """Many small objects and large arrays; the last one changes between epochs."""

    def __init__(self) -> None:
        super().__init__(6)
        self.records = [{"id": i, "name": f"n{i}"} for i in range(20_000)]
        self.array = np.arange(500_000)
        self.tensor = torch.zeros(500_000)

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        return self.records[-1 - index]["id"], int(self.array[-1 - index]), float(self.tensor[-1 - index])


@case("objects")
def large_dataset_changed_at_its_end() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        dataset = Large()
        loader = DataLoader(dataset, batch_size=3, num_workers=workers)
        t.epoch(loader)
        dataset.records[-2]["id"] = -5
        t.epoch(loader)
        dataset.array[-2] = -6
        t.epoch(loader)
        dataset.tensor[-2] = -7
        t.epoch(loader)
    return t


class Meta(type):
    """A metaclass with an opinion."""

    def __instancecheck__(cls, instance: object) -> bool:
        return type(instance) is cls


class Plain(metaclass=Meta):
    """Not a Dataset; found by the old protocol of ``__getitem__`` alone, with a length."""

    scale = 2

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index * self.scale


@case("objects")
def class_attribute_changed_between_epochs() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        Plain.scale = 2
        loader = DataLoader(Plain(), batch_size=2, num_workers=workers)  # type: ignore[arg-type]
        t.epoch(loader)
        Plain.scale = 100
        t.epoch(loader)
    return t


def counter() -> Iterator[int]:
    yield from range(1000)


class Closure(Rows):
    """Its transform is a closure over a list, and one over a generator that it drains."""

    def __init__(self, cell: list[int]) -> None:
        super().__init__(6)
        numbers = counter()
        self.transform = lambda i: i + cell[0]
        self.drain = lambda: next(numbers)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.transform(index), self.drain()


@case("objects")
def state_hidden_in_closures() -> Transcript:
    """Impure through a closure: the counter runs on in its worker; the cell changes between epochs."""
    t = Transcript()
    for workers in (0, 2):
        cell = [10]
        loader = DataLoader(Closure(cell), batch_size=2, num_workers=workers)
        t.epoch(loader)
        cell[0] = 900
        t.epoch(loader)
    return t
