"""What the service asks of a model: loaded once, run in several processes.

Implementations are handed in by ``run``; this package knows none.
"""

from __future__ import annotations

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
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    values: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.values is not None and (self.dtype.kind not in "iu" or self.values[0] > self.values[1]):
            raise ValueError(
                f"`values` of `{self.name}` must be the least and the largest whole number, got {self.values} "
                f"of {self.dtype}"
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
        return other.values is not None and self.values[0] <= other.values[0] <= other.values[1] <= self.values[1]

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
