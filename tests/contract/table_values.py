"""Cases on what a batch may hold: every structure, dtype, layout and alias arrives as the program made it."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from .datasets import Items, Rows, as_is, first_of
from .registry import case
from .transcript import Transcript


class Point(NamedTuple):
    """A typed named tuple."""

    x: torch.Tensor
    label: str


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Sample:
    """A dataclass with a tensor."""

    image: torch.Tensor
    name: str
    size: tuple[int, int] = (1, 2)


@dataclass(frozen=True, slots=True)
class FrozenSample:
    """A frozen dataclass without a dict."""

    image: torch.Tensor
    weight: float


class Custom:
    """A plain object."""

    def __init__(self, tensor: torch.Tensor, extra: Any) -> None:
        self.tensor = tensor
        self.extra = extra


class Slotted:
    """An object without a dict."""

    __slots__ = ("array", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.array = tensor.numpy().copy()


class Reduced(Custom):
    """Says itself how it is pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Reduced, (self.tensor, self.extra)


class Colour(Enum):
    """An enumeration."""

    RED = 1


class Tagged(torch.Tensor):
    """A tensor subclass with an attribute."""


class MyDict(dict):  # type: ignore[type-arg]
    """A dict of the program's own."""


class Made(Dataset[Any]):
    """Samples made by a function of the index, in the worker."""

    def __init__(self, make: Any, length: int = 6) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def run(make: Any, *, collate: Any = as_is, length: int = 6, batch_size: int | None = 2) -> Transcript:
    """One epoch without workers, one with two, of samples that ``make`` makes."""
    t = Transcript()
    for workers in (0, 2):
        dataset = Made(make, length)
        t.epoch(DataLoader(dataset, batch_size=batch_size, collate_fn=collate, num_workers=workers))
    return t


def row(index: int, *shape: int) -> torch.Tensor:
    """A small tensor that depends on the index."""
    count = int(np.prod(shape)) if shape else 1
    return (torch.arange(count, dtype=torch.float32) + index * 100).reshape(shape)


def nested_sample(index: int) -> dict[str, Any]:
    return {
        "x": row(index, 2, 3),
        "pair": (row(index, 2), index),
        "point": Point(row(index, 1), f"p{index}"),
        "more": {"name": f"n{index}", "score": index / 3, "flag": index % 2 == 0, "raw": bytes([index])},
        "list": [np.float32(index), np.arange(3) * index, np.int64(index)],
    }


@case("values")
def nested_default_collate() -> Transcript:
    return run(nested_sample, collate=None)


@case("values")
def nested_as_is() -> Transcript:
    return run(nested_sample)


@case("values")
def batch_size_none_converts() -> Transcript:
    return run(nested_sample, collate=None, batch_size=None)


def odd_sample(index: int) -> list[Any]:
    return [
        None, True, 2**70, float("nan"), -0.0, 1j, "text ü", b"bytes", bytearray(b"more"), Decimal("1.5"), Path("a/b"),
        Colour.RED, {1, 2}, frozenset({3}), deque([index, 2]), range(3), slice(1, 2), (), [], {}, ..., int,
        torch.float16, torch.Size([2, 3]), torch.device("cpu"), OrderedDict(b=1, a=2), MyDict(z=index),
        Pair(index, "r"),
    ]  # fmt: skip


@case("values")
def odd_python_values() -> Transcript:
    return run(odd_sample)


@case("values")
def dataclasses_and_objects() -> Transcript:
    return run(object_sample)


def object_sample(index: int) -> list[Any]:
    return [
        Sample(row(index, 2), f"s{index}"),
        FrozenSample(row(index, 3), index / 7),
        Custom(row(index, 2), {"deep": [row(index, 1), None]}),
        Slotted(row(index, 2)),
        Reduced(row(index, 4), "r"),
    ]


def collate_to_object(batch: list[Any]) -> Custom:
    """A batch that is one object of the program's own."""
    return Custom(default_collate(batch), len(batch))


@case("values")
def collate_to_custom_object() -> Transcript:
    t = run(lambda i: (row(i, 2, 2), i), collate=collate_to_object)
    return t


def dtype_sample(index: int) -> list[torch.Tensor]:
    kinds = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
        torch.float8_e4m3fn, torch.float8_e5m2,
    ]  # fmt: skip
    return [row(index % 2, 3).to(kind) for kind in kinds]


@case("values")
def every_dtype() -> Transcript:
    return run(dtype_sample)


@case("values")
def every_dtype_collated() -> Transcript:
    return run(lambda i: dtype_sample(i)[:12], collate=None)


def shape_sample(index: int) -> list[torch.Tensor]:
    base = row(index, 4, 6)
    return [
        torch.tensor(index), torch.zeros(0), torch.zeros(2, 0, 3), torch.zeros(0, dtype=torch.int64),
        base.t(), base[:, ::2], base[1:3, 2:4], base[0].expand(3, 6), base.as_strided((2, 2), (1, 1)),
        row(index, 2, 3, 4, 5).contiguous(memory_format=torch.channels_last), base[:, None, :], base[2:2],
    ]  # fmt: skip


@case("values")
def shapes_and_strides() -> Transcript:
    return run(shape_sample)


@case("values")
def single_tensors_with_strides() -> Transcript:
    return run(lambda i: row(i, 4, 6).t()[:, 1:], collate=first_of, batch_size=1)


def alias_sample(index: int) -> dict[str, Any]:
    base = row(index, 8)
    return {"base": base, "head": base[:4], "tail": base[4:], "again": base, "bits": base.view(torch.int32)}


@case("values")
def aliases_within_a_batch() -> Transcript:
    """Views of one storage stay views of one storage, one object twice stays one object."""
    t = run(alias_sample, collate=first_of, batch_size=1)
    for workers in (0, 2):
        batch = next(iter(DataLoader(Made(alias_sample), batch_size=1, collate_fn=first_of, num_workers=workers)))
        batch["tail"].zero_()
        t.batch(batch)
    return t


def list_in_itself(batch: list[Any]) -> list[Any]:
    """A batch with a cycle."""
    out: list[Any] = [batch[0]]
    out.append(out)
    return out


@case("values")
def batch_with_a_cycle() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        for batch in DataLoader(Rows(4), batch_size=1, collate_fn=list_in_itself, num_workers=workers):
            t.batch(batch[0])
            t.event("cycle", batch[1] is batch)
    return t


def sparse_sample(index: int) -> list[torch.Tensor]:
    dense = torch.eye(3) * (index + 1)
    doubled = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (3, 4))
    return [dense.to_sparse(), dense.to_sparse_csr(), doubled, torch.zeros(2, 2).to_sparse()]


@case("values", warnings=False)
def sparse_tensors() -> Transcript:
    """Warnings are not compared: torch warns once per process that CSR is in beta, wherever it is first made."""
    return run(sparse_sample)


def nested_tensor_sample(index: int) -> torch.Tensor:
    return torch.nested.nested_tensor([row(index, 2), row(index, 3)])


@case("values", warnings=False)
def nested_tensors() -> Transcript:
    """Warnings are not compared: torch warns once per process that nested tensors are a prototype."""
    return run(nested_tensor_sample)


def grad_sample(index: int) -> list[torch.Tensor]:
    return [row(index, 2).requires_grad_(), torch.nn.Parameter(row(index, 2)), row(index, 2)]


@case("values")
def gradients_and_parameters() -> Transcript:
    return run(grad_sample)


def derived_sample(index: int) -> torch.Tensor:
    return row(index, 2).requires_grad_() * 2


@case("values")
def non_leaf_tensor() -> Transcript:
    """Only without workers: torch cannot send a tensor with a history, its worker fails to and the program waits."""
    t = Transcript()
    t.epoch(DataLoader(Made(derived_sample), batch_size=None, collate_fn=as_is))
    return t


def tagged_sample(index: int) -> torch.Tensor:
    tagged = row(index, 3).as_subclass(Tagged)
    tagged.origin = f"file{index}"  # type: ignore[attr-defined]
    return tagged


@case("values")
def tensor_subclass() -> Transcript:
    return run(tagged_sample)


@case("values")
def tensor_subclass_collated() -> Transcript:
    return run(tagged_sample, collate=None)


RECORD = np.dtype([("id", "<i4"), ("name", "U3"), ("box", "<f4", (2,))])


def array_sample(index: int) -> list[Any]:
    base = np.arange(12, dtype=np.float32).reshape(3, 4) + index
    objects = np.array([None, "s", index, np.arange(2)], dtype=object)
    return [
        base, np.asfortranarray(base), base[:, ::2], base.T, np.zeros((0, 3)), np.array(index), objects,
        np.array([(index, "ab", (1, 2))], dtype=RECORD), np.array(["x", "yy"]), np.array([b"z"]), base.astype(">f4"),
        np.array(["2020-01-01"], dtype="datetime64[D]"), np.float64(index), np.bool_(True), np.str_("s"),
        np.ma.masked_array([1, 2], mask=[0, 1]).filled(0), base.astype(np.float16), base.astype(np.complex128),
    ]  # fmt: skip


@case("values")
def numpy_arrays() -> Transcript:
    return run(array_sample)


@case("values")
def numpy_collated() -> Transcript:
    return run(lambda i: array_sample(i)[:3] + array_sample(i)[4:6], collate=None)


def read_only_sample(index: int) -> np.ndarray[Any, Any]:
    array = np.arange(4) + index
    array.setflags(write=False)
    return array


@case("values", warnings=False)
def numpy_read_only_collated() -> Transcript:
    """Warnings are not compared: torch warns in whichever process collates."""
    return run(read_only_sample, collate=None)


@case("values")
def text_and_bytes() -> Transcript:
    items = ["", "a", "long " * 3000, "ünïcødé", "\x00"]
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Items(items), batch_size=2, num_workers=workers))
        t.epoch(DataLoader(Items([s.encode() for s in items]), batch_size=2, num_workers=workers))
    return t


@case("values")
def batches_that_are_not_containers() -> Transcript:
    t = Transcript()
    for item in (None, 3, "s", b"b", 2.5, torch.tensor(1), np.float32(2)):
        t.epoch(DataLoader(Items([item] * 2), batch_size=1, collate_fn=first_of, num_workers=2))
    return t


@case("sizes")
def growing_and_shrinking_batches() -> Transcript:
    """From bytes to megabytes and back: the transport changes, the batch does not."""
    sizes = [1, 10, 1000, 100_000, 1_000_000, 3, 2_000_000, 50, 500_000, 0, 7]
    t = Transcript()
    loader = DataLoader(Made(lambda i: torch.arange(sizes[i]), len(sizes)), batch_size=None, num_workers=2)
    t.epochs(loader)
    return t


@case("sizes")
def many_small_batches() -> Transcript:
    t = Transcript()
    total = torch.zeros(3)
    for x, y in DataLoader(Rows(600), batch_size=2, shuffle=True, num_workers=2):
        total = total * 0.5 + x.sum(0) + y.sum()
    t.event("total", total)
    t.rng("end")
    return t


@case("sizes")
def many_tensors_in_a_batch() -> Transcript:
    t = Transcript()
    for batch in DataLoader(Made(lambda i: [row(i, 2) for _ in range(150)], 6), collate_fn=as_is, num_workers=2):
        t.event("sums", [len(batch[0]), sum(float(x.sum()) for x in batch[0])])
    return t


@case("sizes")
def kept_list_of_batches() -> Transcript:
    """``list(loader)`` holds every batch at once."""
    t = Transcript()
    for size in (2, 40_000):
        batches = list(DataLoader(Rows(90, size), batch_size=2, num_workers=2))
        t.rng("end")
        t.event("all", batches)
    return t
