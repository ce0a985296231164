"""What the service asks of a model: loaded once, run in several processes.

Implementations are handed in by ``run``; this package knows none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[np.generic]]
"""Tensors by name."""

ANY = -1
"""Size of an axis that each request sets; in front, that of the samples of a batch."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output of a model.

    Attributes:
        name: unique among its like.
        dtype: of NumPy.
        shape: with :data:`ANY` where a size is free; the first is that of the batch.
        values: the least and the largest number that a whole-number input takes, such as rows of a table; None where
            any of its dtype will do.
        highs: the largest number at each place of a sample, flattened, where places differ, such as columns for several
            tables: then the least is 0; -1 where nothing reads one and any will do. Empty: that of `values` everywhere.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    values: tuple[int, int] | None = None
    highs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.values is not None and (self.dtype.kind not in "iu" or self.values[0] > self.values[1]):
            raise ValueError(
                f"`values` of `{self.name}` must be the least and the largest whole number, got {self.values} "
                f"of {self.dtype}"
            )
        if self.highs and (
            self.values is None
            or self.values[0]
            or ANY in self.shape[1:]
            or len(self.highs) != math.prod(self.shape[1:])
            or not -1 <= min(self.highs) <= max(self.highs) <= self.values[1]
        ):
            raise ValueError(
                f"`highs` of `{self.name}` must be one number for each place of {list(self.shape[1:])}, from -1 to the "
                f"largest of {self.values}, whose least is 0"
            )

    @property
    def is_batched(self) -> bool:
        """Whether requests may be joined along the first axis."""
        return bool(self.shape) and self.shape[0] == ANY

    def takes_all_of(self, other: TensorSpec) -> bool:
        """Whether each tensor that the other one takes may be given here as well."""
        if (self.name, self.dtype, self.shape) != (other.name, other.dtype, other.shape):
            return False
        if self.values is None:
            return True
        if other.values is None:
            return False
        if not self.highs and not other.highs:
            return self.values[0] <= other.values[0] <= other.values[1] <= self.values[1]
        (low, high), (others_low, others_high) = self.bounds(), other.bounds()
        return bool(((low <= others_low) & (others_high <= high)).all())

    def bounds(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The least and the largest number at each place of a sample, in its shape; of int64 where any will do."""
        shape = tuple(max(size, 1) for size in self.shape[1:])
        whole = np.iinfo(np.int64)
        low, high = self.values or (whole.min, whole.max)
        if not self.highs:
            return np.full(shape, low, np.int64), np.full(shape, high, np.int64)
        highs = np.array(self.highs, np.int64).reshape(shape)
        read = highs >= 0
        return np.where(read, low, whole.min), np.where(read, highs, whole.max)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this shape may be given."""
        if len(shape) != len(self.shape):
            return False
        # A loop: this is asked for every request, and a generator takes twice as long.
        for size, own in zip(shape, self.shape, strict=True):  # noqa: SIM110
            if size < 1 if own == ANY else size != own:
                return False
        return True


@dataclass(frozen=True)
class Interface:
    """What a model takes and gives.

    Attributes:
        inputs: all of them must be given.
        outputs: of each call.
        platform: name of what computes, for people: ``torch``, ``onnxruntime``.
        parameters: facts that go with each answer, such as cycles of a simulated accelerator.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str
    parameters: Mapping[str, str | int | float | bool] = field(default_factory=dict[str, "str | int | float | bool"])
    alone: str = ""
    """Why requests must not be joined although their shapes allow it; empty where they may be."""
    is_batched: bool = field(init=False)
    """Whether requests may be joined: every input and output has a free first axis, and no sample tells in another."""

    def __post_init__(self) -> None:
        batched = not self.alone and all(each.is_batched for each in (*self.inputs, *self.outputs))
        object.__setattr__(self, "is_batched", batched)


class ModelEngine(Protocol):
    """Computes, in a separate process and in one thread at a time."""

    @property
    def interface(self) -> Interface:
        """What it takes and gives."""
        ...

    def run(self, inputs: Arrays) -> Arrays:
        """The outputs for the inputs.

        Args:
            inputs: read-only, of the interface's names, dtypes, shapes and ranges; not kept beyond the call.

        Raises:
            Exception: the model fails at these inputs; the engine goes on.
        """
        ...


class Model(Protocol):
    """Loaded in the process from which those of engines are forked, so that they share its memory.

    Loading computes nothing: a process whose libraries have started threads cannot be forked.
    """

    @property
    def in_any_thread(self) -> bool:
        """Whether another thread than the one that runs an engine may make it.

        Not if an engine starts threads or processes: they would keep the priority of the thread that made it.
        """
        ...

    def engine(self) -> ModelEngine:
        """An engine, made in the process that will run it."""
        ...
