"""Operations on real numbers, with torch's axes: axis 0 is the batch at the model's ends, channels come second.

A size that is a multiple of the batch is written as a negative number: -4 is four times the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What all have.

    Attributes:
        name: of the result.
        sources: names of what it reads.
        layer: path of the module in the model; empty for the model itself.
        where: file and line of the user's program.
    """

    name: str
    sources: tuple[str, ...]
    layer: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenGrid:
    """Whole numbers that the imported graph itself puts a value on: ``scale * (q - zero_point)``."""

    bits: int
    signed: bool
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GivenWeights:
    """Steps that weights of the imported graph are multiples of.

    Attributes:
        scales: by output channel.
        bits: that hold the multiples.
    """

    scales: Real
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatLinear(_Node):
    """``y[..., o] = sum_i x[..., i] weight[o, i] + bias[o]``.

    Attributes:
        weight: outputs, inputs.
        bias: by output.
        given: steps of the weights; None: they are chosen.
    """

    weight: Real
    bias: Real
    given: GivenWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatConvolution(_Node):
    """Weights are (outputs, inputs of a group, height, width); without height for one-dimensional input.

    Attributes:
        weight: four axes in either case; height 1 for one-dimensional input.
        bias: by output channel.
        stride: rows, columns.
        padding: rows above and below, columns left and right, of zeros.
        dilation: rows, columns.
        groups: of channels.
        flat: whether the input has one spatial axis.
        given: steps of the weights; None: they are chosen.
    """

    weight: Real
    bias: Real
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    flat: bool
    given: GivenWeights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatScale(_Node):
    """``y[:, c] = x[:, c] factor[c] + offset[c]``: a batch norm that follows nothing it could be folded into."""

    factor: Real
    offset: Real


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPool(_Node):
    """The largest or the mean of windows.

    Attributes:
        kind: which.
        kernel: rows, columns.
        stride: rows, columns.
        padding: rows above and below, columns left and right.
        dilation: rows, columns; of a maximum.
        counted: columns and rows of padding that a mean counts as elements.
        flat: whether the input has one spatial axis.
    """

    kind: Literal["max", "mean"]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int] = (1, 1)
    counted: tuple[int, int, int, int] = (0, 0, 0, 0)
    flat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPointwise(_Node):
    """A function of one number, by name; :mod:`stoker.deploy.floating.functions` has them."""

    function: str
    arguments: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatSum(_Node):
    """The sum of sources times factors."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatProduct(_Node):
    """Two sources, element by element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatMatMul(_Node):
    """The product of the last two axes, times a factor."""

    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatConcat(_Node):
    """Sources one after another along an axis."""

    axis: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatReshape(_Node):
    """The same numbers under another shape; negative sizes are multiples of the batch."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatPermute(_Node):
    """Axis k of the result is axis ``order[k]``."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatSlice(_Node):
    """Every ``step``-th part from ``start`` up to before ``stop`` along an axis."""

    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatMean(_Node):
    """The mean over axes, which stay with size 1; a sum if ``divided`` is False."""

    axes: tuple[int, ...]
    divided: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatEmbedding(_Node):
    """Rows of a table by number; of a bag (last axis) their sum, or mean, if asked."""

    table: Real
    bag: Literal["", "sum", "mean"] = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FloatLookup(_Node):
    """Entries of a table by whole numbers from 0 on, one a source; sources broadcast.

    Attributes:
        table: whole numbers from 0 on, with an axis for each source.
    """

    table: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatRunningSum(_Node):
    """The sum of whole numbers from 0 on, up to and with each place of the last axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatNorm(_Node):
    """Layer norm over the last axis."""

    gain: Real
    offset: Real
    eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatSoftmax(_Node):
    """Softmax over the last axis; where the mask is 0, or a second source that broadcasts, nothing counts.

    Attributes:
        mask: of 0 and 1, broadcast over the source's last axes; None for all 1.
        log: whether the result is the shares' logarithm, which has no mask.
    """

    mask: NDArray[Any] | None = None
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatConstant(_Node):
    """The same numbers for each sample, without the batch's axis: axis 0 has size 1 instead."""

    array: Real


FloatOperation: TypeAlias = (
    FloatLinear
    | FloatConvolution
    | FloatScale
    | FloatPool
    | FloatPointwise
    | FloatSum
    | FloatProduct
    | FloatMatMul
    | FloatConcat
    | FloatReshape
    | FloatPermute
    | FloatSlice
    | FloatMean
    | FloatEmbedding
    | FloatLookup
    | FloatRunningSum
    | FloatNorm
    | FloatSoftmax
    | FloatConstant
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatInput:
    """An input of the model.

    Attributes:
        name: of the argument.
        shape: with the batch, negative.
        whole: whether it holds whole numbers, rows of tables or masks.
        truth: whether these are truth values for a caller.
        count: of whole numbers that it can hold, from 0 on.
    """

    name: str
    shape: tuple[int, ...]
    whole: bool
    truth: bool = False
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatGraph:
    """A model on real numbers.

    Attributes:
        inputs: in the order of its arguments.
        outputs: names of its results, and of the operations or inputs that they are.
        operations: each after those that it reads.
        shapes: of every result and input, with the batch, negative.
        grids: of values that the imported graph itself puts on whole numbers; others get theirs from samples.
        folded: whole values that masks were made of which are alike for all numbers that these can hold, and only for
            these: nothing reads them, and they are bounded all the same.
    """

    inputs: tuple[FloatInput, ...]
    outputs: Mapping[str, str]
    operations: tuple[FloatOperation, ...]
    shapes: Mapping[str, tuple[int, ...]]
    grids: Mapping[str, GivenGrid] = field(default_factory=lambda: {})
    folded: tuple[str, ...] = ()
