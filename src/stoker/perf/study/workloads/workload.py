"""What a published row trained: the model, the shapes of a micro-batch, what its throughput counts.

Plain data; torch is imported only when a model is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from stoker.perf.study.tables.rows import Published

if TYPE_CHECKING:
    from torch import Tensor, nn

Optimizer = Literal["sgd-momentum", "adam", "lamb", "rmsprop", "rmsprop+ftrl", "adagrad+ftrl"]

EXAMPLES = "NVIDIA/DeepLearningExamples@729963d"
LAMBDA = "lambdal/deeplearning-benchmark@aa5addb"


@dataclass(frozen=True, slots=True)
class Input:
    """One tensor of a micro-batch.

    Attributes:
        below: integers are drawn from 0 up to this; 0 for other types.
    """

    name: str
    shape: tuple[int, ...]
    below: int = 0


@dataclass(frozen=True, slots=True)
class Excluded:
    """A row that is not predicted, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step that can be built and run.

    Attributes:
        model: its module, ``file:class``, below ``workloads/modules``; its forward returns the loss.
        options: of the module.
        inputs: of one micro-batch on one GPU, in the order of the module's forward.
        precision: of products, as in :class:`Published`; corrected where the publisher's log contradicts its table.
        batch: items of a micro-batch on one GPU.
        accumulation: micro-batches of a step.
        loop: passes of a loop in the module, all of equal cost; 0 for none. See :meth:`shortened`.
        counted: what a micro-batch on one GPU adds to the published throughput, in :attr:`unit`.
        unit: of the throughput.
        sources: of each assumption.
    """

    name: str
    model: str
    inputs: tuple[Input, ...]
    optimizer: Optimizer
    precision: str
    batch: int
    counted: float
    unit: str
    sources: tuple[str, ...]
    accumulation: int = 1
    loop: int = 0
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def program(self) -> tuple[object, ...]:
        """What a trace depends on: one serves all rows that share it."""
        return self.model, str(self.options), self.inputs, self.optimizer, self.precision

    @property
    def key(self) -> str:
        """The program, in short."""
        return hashlib.sha256(repr(self.program).encode()).hexdigest()[:16]

    def build(self) -> nn.Module:
        """Builds the module; allocates nothing under a torch device or mode that does not."""
        file, name = self.model.split(":")
        module = import_module(f"stoker.perf.study.workloads.modules.{file}")
        return getattr(module, name)(**self.options)

    def tensors(self) -> tuple[Tensor, ...]:
        """A micro-batch: zeros, and whole numbers that cycle through their range."""
        torch = import_module("torch")
        return tuple(
            (torch.arange(prod(wanted.shape)) * 7_919 % wanted.below).reshape(wanted.shape)
            if wanted.below
            else torch.zeros(wanted.shape)
            for wanted in self.inputs
        )

    def shortened(self, loop: int) -> Workload:
        """The same with fewer passes of its loop: two lengths give the cost of any by a straight line."""
        inputs = tuple(
            replace(wanted, shape=tuple(loop if size == self.loop else size for size in wanted.shape))
            for wanted in self.inputs
        )
        return replace(self, inputs=inputs, loop=loop)

    def step_s(self, row: Published) -> float:
        """Seconds of one optimizer step of a row that this describes."""
        scale = 1e6 if row.unit.startswith("M") else 1.0
        return row.gpus * self.accumulation * self.counted / (row.throughput * scale)


Rule = Callable[[Published], Workload | Excluded]
"""What a row of one published model is."""
