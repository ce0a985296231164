"""The operations of the graph, each with its law.

``x``, ``w``, ``acc`` are whole numbers, ``z`` is the zero point of an input; names end in the value they mean. Where an
operation has a :class:`Requantiser`, its result is ``acc`` brought to the output's scale by the requantiser's law.
Constants (weights, biases, multipliers, tables) are named; the graph holds them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Requantiser(msgspec.Struct, frozen=True, kw_only=True):
    """Brings an accumulator to the output's scale: ``clamp(((acc * M + 2^(S-1)) >> S) + zero_point, low, high)``.

    The shift is arithmetic, so halves are rounded up; nothing is added where S is 0. A rectifier is ``low`` at the zero
    point, and costs nothing.
    """

    multiplier: str | None
    """Constant M, unsigned 16 bits, that broadcasts over the accumulator (by channel: the last axis); None: M = 1."""
    shift: int
    zero_point: int
    low: int
    high: int


class Linear(msgspec.Struct, frozen=True, kw_only=True, tag="linear"):
    """``acc[..., o] = sum_i x[..., i] * w[o, i] + bias[o]``; the input's zero point is folded into the bias."""

    source: str
    output: str
    weight: str
    weight_bits: int
    bias: str
    requantiser: Requantiser


class Convolution(msgspec.Struct, frozen=True, kw_only=True, tag="convolution"):
    """``acc[y, x, o] = sum x_padded[y*sy + i*dy, x*sx + j*dx, c] * w[o, i, j, c] + bias[o]``.

    Input and output are (height, width, channels); weights (output channels, height, width, input channels a group).
    The padding is the input's zero point, with which folding that zero point into the bias is right at borders too.
    One-dimensional convolutions have height 1. Depthwise: as many groups as input channels.
    """

    source: str
    output: str
    weight: str
    weight_bits: int
    bias: str
    requantiser: Requantiser
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Rows above and below, columns left and right."""
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1


class MaxPool(msgspec.Struct, frozen=True, kw_only=True, tag="max_pool"):
    """The largest of each window, by channel; what lies outside the input is the input's ``low``."""

    source: str
    output: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)


class SumPool(msgspec.Struct, frozen=True, kw_only=True, tag="sum_pool"):
    """``acc = sum of (x - z)`` of each window, by channel; the padding is z. The mean's divisor is in the requantiser.

    Windows that count fewer elements at a border have their own multiplier: M is then (height, width, 1).
    """

    source: str
    output: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]
    requantiser: Requantiser


class Mean(msgspec.Struct, frozen=True, kw_only=True, tag="mean"):
    """``acc = sum of (x - z)`` over axes, which stay with size 1; the divisor is in the requantiser."""

    source: str
    output: str
    axes: tuple[int, ...]
    """Without the batch, from 0."""
    requantiser: Requantiser


class Add(msgspec.Struct, frozen=True, kw_only=True, tag="add"):
    """``acc = sum_k m[k] * (x_k - z_k)``; shapes broadcast at axes of size 1. The requantiser has M = 1."""

    sources: tuple[str, ...]
    output: str
    multipliers: tuple[int, ...]
    """Signed, 16 bits and the sign: a difference has a negative one."""
    requantiser: Requantiser


class Multiply(msgspec.Struct, frozen=True, kw_only=True, tag="multiply"):
    """``acc = (a - z_a) * (b - z_b)``; shapes broadcast at axes of size 1."""

    sources: tuple[str, str]
    output: str
    requantiser: Requantiser


class MatMul(msgspec.Struct, frozen=True, kw_only=True, tag="matmul"):
    """``acc[..., i, j] = sum_k (a[..., i, k] - z_a) * (b[..., k, j] - z_b)``; transposed: ``b[..., j, k]``."""

    sources: tuple[str, str]
    output: str
    transposed: bool
    requantiser: Requantiser


class Rescale(msgspec.Struct, frozen=True, kw_only=True, tag="rescale"):
    """``acc = x - z``: the same numbers in another scale or width."""

    source: str
    output: str
    requantiser: Requantiser


class Table(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """``y = table[x - type_low]``: any function of one number, one entry for each that the input's bits hold."""

    source: str
    output: str
    table: str


class Concat(msgspec.Struct, frozen=True, kw_only=True, tag="concat"):
    """Inputs of one scale, zero point and type, one after another along an axis."""

    sources: tuple[str, ...]
    output: str
    axis: int


class Reshape(msgspec.Struct, frozen=True, kw_only=True, tag="reshape"):
    """The same numbers in the same order under the output's shape."""

    source: str
    output: str


class Permute(msgspec.Struct, frozen=True, kw_only=True, tag="permute"):
    """Axis k of the output is axis ``order[k]`` of the input, both without the batch."""

    source: str
    output: str
    order: tuple[int, ...]


class Slice(msgspec.Struct, frozen=True, kw_only=True, tag="slice"):
    """Every ``step``-th part from ``start`` up to before ``stop`` along an axis."""

    source: str
    output: str
    axis: int
    start: int
    stop: int
    step: int = 1


class Embedding(msgspec.Struct, frozen=True, kw_only=True, tag="embedding"):
    """``y[..., :] = table[x[...], :]``; the rows are in the output's scale."""

    source: str
    output: str
    table: str


class EmbeddingBag(msgspec.Struct, frozen=True, kw_only=True, tag="embedding_bag"):
    """``acc[..., :] = sum_k table[x[..., k], :]``; a mean's divisor is in the requantiser. Table entries have z = 0."""

    source: str
    output: str
    table: str
    table_bits: int
    requantiser: Requantiser


class LayerNorm(msgspec.Struct, frozen=True, kw_only=True, tag="layer_norm"):
    """Normalises the last axis, of D numbers, with one division a row.

    ``c = D * x - sum(x)``; ``q = sum(c * c) + epsilon``; ``t = max(1, isqrt((q << 2 * root_bits) // D))``;
    ``r = (1 << reciprocal_bits) // t``; ``n = (c * r + half) >> (reciprocal_bits - root_bits - normal_bits)``, which is
    the normalised number with ``normal_bits`` of fraction; ``acc = n * gain + offset``. ``half`` is half a step of the
    shift, and isqrt the floor of the root.
    """

    source: str
    output: str
    gain: str
    """Signed 16 bits, by element of the axis."""
    offset: str
    epsilon: int
    """D^3 * eps / scale^2 of the input, rounded."""
    root_bits: int
    reciprocal_bits: int
    normal_bits: int
    requantiser: Requantiser
    """M = 1: the gain brings the scale."""


class Softmax(msgspec.Struct, frozen=True, kw_only=True, tag="softmax"):
    """Over the last axis: ``e = table[max(x) - x]``, ``y = min((e * 2^B + sum(e) // 2) // sum(e), 2^B - 1)``.

    B are the output's bits; its scale is ``2^-B``, its zero point 0, and it is unsigned. Where a mask is 0, an
    element counts neither for the largest nor for the sum, and its result is 0. A row of which nothing counts is 0
    throughout.
    """

    source: str
    output: str
    table: str
    """``2^bits`` entries of unsigned 16 bits for the differences from 0; the first is the largest and above 0."""
    mask: str | None = None
    """Constant of 0 and 1 that broadcasts over the input."""
    counts: str | None = None
    """A value of 0 and 1, of the input's rank, that broadcasts over it: a mask that differs from sample to sample."""


class FixedValue(msgspec.Struct, frozen=True, kw_only=True, tag="constant"):
    """The same numbers for each sample."""

    output: str
    array: str


Operation: TypeAlias = (
    Linear
    | Convolution
    | MaxPool
    | SumPool
    | Mean
    | Add
    | Multiply
    | MatMul
    | Rescale
    | Table
    | Concat
    | Reshape
    | Permute
    | Slice
    | Embedding
    | EmbeddingBag
    | LayerNorm
    | Softmax
    | FixedValue
)
"""All of them; each has ``output``, and ``source``, ``sources`` or neither."""

REQUANTISED = (Linear, Convolution, SumPool, Mean, Add, Multiply, MatMul, Rescale, EmbeddingBag, LayerNorm)
"""Those with an accumulator and a requantiser."""


def sources_of(operation: Operation) -> tuple[str, ...]:
    """Names of the values that an operation reads."""
    if isinstance(operation, FixedValue):
        return ()
    if isinstance(operation, (Add, Multiply, MatMul, Concat)):
        return operation.sources
    if isinstance(operation, Softmax) and operation.counts is not None:
        return operation.source, operation.counts
    return (operation.source,)


def constants_of(operation: Operation) -> tuple[str, ...]:
    """Names of the constants that an operation reads."""
    found: list[str | None] = []
    if isinstance(operation, (Linear, Convolution)):
        found += [operation.weight, operation.bias]
    elif isinstance(operation, (Table, Embedding, EmbeddingBag)):
        found += [operation.table]
    elif isinstance(operation, LayerNorm):
        found += [operation.gain, operation.offset]
    elif isinstance(operation, Softmax):
        found += [operation.table, operation.mask]
    elif isinstance(operation, FixedValue):
        found += [operation.array]
    if isinstance(operation, REQUANTISED):
        found.append(operation.requantiser.multiplier)
    return tuple(name for name in found if name is not None)
