"""The features of one training step: its operations, weights and memory. Plain data, without torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec
import msgspec.structs

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")
MATRIX_KINDS = frozenset({"matmul", "conv", "attention", "rnn"})
"""Kinds that run on matrix units; the FLOPs of all others are those of single elements."""
_LEAST_PRODUCTS = 4
"""Matrix products of a block of attention and MLP besides the attention's own: into it, out of it, two of the MLP."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one operation that are alike: same phase, module, precision and sizes."""

    name: str
    """Torch's name, such as ``mm`` or ``native_layer_norm``; ``attention.flash`` and ``lstm`` for fused ones."""
    kind: str
    """Class of operation: ``matmul``, ``conv``, ``attention``, ``rnn``, ``norm``, ``pointwise``, ... or ``unknown``."""
    phase: Phase
    dtype: str
    """Precision of the computation."""
    dims: tuple[int, ...]
    """Sizes that its speed depends on; matmul: batch, m, n, k; others: elements."""
    module: str
    """Path of the module whose forward began it; also of its backward. Empty outside of modules."""
    count: int
    """Kernels started if each operation is one."""
    flops: float
    eager_bytes: float
    """Bytes read and written when each operation reads its inputs and writes its outputs."""
    fused_bytes: float
    """The same if chains of elementwise work, norms and softmax stay on the chip."""
    fused_count: int
    """Kernels started in that case."""


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters, and the training state that belongs to them."""

    dense_count: int
    embedding_count: int
    """Parameters that are only ever looked up by row."""
    dense_bytes: int
    embedding_bytes: int
    dense_gradient_bytes: int
    embedding_gradient_bytes: int
    """The whole table, or the touched rows where gradients are sparse."""
    embedding_touched_bytes: int
    """Rows that one step looks up, repeated ones counted each time."""
    optimizer_bytes: int

    @property
    def count(self) -> int:
        """All parameters."""
        return self.dense_count + self.embedding_count

    @property
    def bytes(self) -> int:
        """Bytes of all parameters."""
        return self.dense_bytes + self.embedding_bytes


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to one module itself, without the modules in it; its operations are found by its path."""

    module: str
    """Path, as in :attr:`Operation.module`; empty for what runs outside of modules."""
    dense_bytes: int = 0
    """Bytes of the parameters that it is the first to use, embedding tables aside."""
    dense_gradient_bytes: int = 0
    """Bytes of their gradients, all of which exist once its backward pass is done."""
    embedding_bytes: int = 0
    """Bytes of the tables that are only ever looked up."""
    embedding_gradient_bytes: int = 0
    """The whole tables, or the touched rows where gradients are sparse."""
    saved_bytes: int = 0
    """Activations that its forward pass made and that are alive when the backward pass begins."""
    output_bytes: int = 0
    """Bytes that one call of its forward pass returns: what a stage that ends here would send on."""


class Unknown(msgspec.Struct, frozen=True, kw_only=True):
    """An operation without a formula: its bytes are its inputs and outputs, its FLOPs are not known."""

    name: str
    count: int
    bytes: float
    where: str
    """Line of the program that called it first."""


@functools.cache
def block_of(module: str) -> str:
    """Path of the repeated block that a module belongs to, which ends in its first number; empty for none."""
    parts = module.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


class StepFeatures(msgspec.Struct, frozen=True, kw_only=True, dict=True):  # a dictionary: for the cached property
    """One training step of a program, as numbers."""

    name: str
    target: str
    """What kernels were chosen for: ``cuda`` or ``cpu``."""
    batch_size: int
    operations: tuple[Operation, ...]
    weights: Weights
    input_bytes: int
    """Bytes of one batch, as it is copied to the device."""
    activation_peak_bytes: int
    """Most bytes alive at once besides weights, gradients, optimizer state and inputs."""
    peak_bytes: int
    """Most that is alive at once, of everything."""
    compiled: bool = False
    """Whether ``torch.compile`` makes its kernels."""
    channels_last: bool = False
    """Whether most of its convolutions are given channels last."""
    micro_batches: int = 1
    """Parts of the batch that the step computes one after another, accumulating gradients; other fields cover all."""
    layers: tuple[Layer, ...] = ()
    """Modules that run operations or own parameters, in the order in which the forward pass reaches them."""
    unknown: tuple[Unknown, ...] = ()
    assumptions: tuple[str, ...] = ()
    """Assumptions about values that are not computed."""

    @property
    def flops(self) -> float:
        """FLOPs of the whole step."""
        return sum(operation.flops for operation in self.operations)

    @property
    def eager_bytes(self) -> float:
        """Bytes of the whole step, with each operation as one kernel."""
        return sum(operation.eager_bytes for operation in self.operations)

    @property
    def fused_bytes(self) -> float:
        """Bytes of the whole step after fusion."""
        return sum(operation.fused_bytes for operation in self.operations)

    @property
    def micro_batch_size(self) -> int:
        """Samples that are computed at once."""
        return max(1, round(self.batch_size / self.micro_batches))

    def one_micro_batch(self) -> StepFeatures:
        """The step that computes only one micro-batch (the mean of all), and then steps the optimizer."""
        times = self.micro_batches
        if times == 1:
            return self
        return msgspec.structs.replace(
            self,
            micro_batches=1,
            batch_size=self.micro_batch_size,
            input_bytes=round(self.input_bytes / times),
            operations=tuple(_share(each, times) if each.phase != "optimizer" else each for each in self.operations),
            weights=_looked_up(
                self.weights, times, embedding_touched_bytes=self.weights.embedding_touched_bytes // times
            ),
            layers=tuple(_looked_up(layer, times) for layer in self.layers),
        )

    @functools.cached_property
    def transformer_blocks(self) -> frozenset[str]:
        """Paths of blocks with an attention, as one kernel or written out, and the products around it and of an MLP.

        Computed once, since planning needs them many times.
        """
        fused: set[str] = set()
        softmax: set[str] = set()
        products: dict[str, int] = {}
        squares: dict[str, int] = {}
        for operation in self.operations:
            path = block_of(operation.module)
            if operation.phase != "forward" or not path:
                continue
            if operation.kind == "attention":
                fused.add(path)
            elif operation.kind == "softmax":
                softmax.add(path)
            elif operation.kind == "matmul":
                found = squares if operation.dims and operation.dims[0] > 1 else products
                found[path] = found.get(path, 0) + operation.count
        written = {path for path in softmax if squares.get(path, 0) >= 2}
        return frozenset(path for path in fused | written if products.get(path, 0) >= _LEAST_PRODUCTS)

    @property
    def input_bytes_per_sample(self) -> float:
        """Input of one sample."""
        return self.input_bytes / self.batch_size

    def matrix_flops(self, phase: Phase | None = None) -> float:
        """FLOPs of matrix units, of one phase or of all; a multiplication and its addition count as two."""
        return sum(
            operation.flops
            for operation in self.operations
            if operation.kind in MATRIX_KINDS and phase in (None, operation.phase)
        )

    def by_kind(self) -> dict[tuple[Phase, str], Operation]:
        """Sums per phase and kind, in the order of phases, the largest share of bytes first."""
        groups: dict[tuple[Phase, str], list[Operation]] = {}
        for operation in self.operations:
            groups.setdefault((operation.phase, operation.kind), []).append(operation)
        sums = {key: _summed(found) for key, found in groups.items()}
        return dict(sorted(sums.items(), key=lambda item: (PHASES.index(item[0][0]), -item[1].eager_bytes)))

    def to_json(self) -> bytes:
        """The features as JSON, for files and other programs."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(content: bytes) -> StepFeatures:
        """The features that :meth:`to_json` wrote."""
        return msgspec.json.decode(content, type=StepFeatures)


def _share(operation: Operation, times: int) -> Operation:
    return msgspec.structs.replace(
        operation,
        count=max(1, round(operation.count / times)),
        flops=operation.flops / times,
        eager_bytes=operation.eager_bytes / times,
        fused_bytes=operation.fused_bytes / times,
        fused_count=round(operation.fused_count / times),
    )


_Tables = TypeVar("_Tables", Weights, Layer)


def _looked_up(found: _Tables, times: int, **values: int) -> _Tables:
    """Sparse gradients are the touched rows; dense ones the whole table, however often it is looked up."""
    if found.embedding_gradient_bytes < found.embedding_bytes:
        values["embedding_gradient_bytes"] = found.embedding_gradient_bytes // times
    return msgspec.structs.replace(found, **values)


def _summed(operations: Iterable[Operation]) -> Operation:
    found = list(operations)
    first = found[0]
    return Operation(
        name=first.kind, kind=first.kind, phase=first.phase, dtype=first.dtype, dims=(), module="",
        count=sum(operation.count for operation in found),
        flops=sum(operation.flops for operation in found),
        eager_bytes=sum(operation.eager_bytes for operation in found),
        fused_bytes=sum(operation.fused_bytes for operation in found),
        fused_count=sum(operation.fused_count for operation in found),
    )  # fmt: skip


def parse_hints(words: Iterable[str]) -> dict[str, float]:
    """Hints of the command line, ``name=value``.

    Raises:
        ValueError: one is not of that form.
    """
    hints: dict[str, float] = {}
    for word in words:
        name, equals, value = word.rpartition("=")
        try:
            hints[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise ValueError(f"`--hint` must be NAME=NUMBER, such as train.py:31=128 or nonzero=0.15, got {word!r}")
    return check_hints(hints)


def check_hints(hints: Mapping[str, float]) -> dict[str, float]:
    """The hints, each of which must be a number of elements or a fraction.

    Raises:
        ValueError: one is negative, or above 1 and not whole.
    """
    for name, value in hints.items():
        if value < 0 or (value > 1 and value != int(value)):
            raise ValueError(f"`hint` {name} must be a whole number or a fraction of at most 1, got {value:g}")
    return dict(hints)
