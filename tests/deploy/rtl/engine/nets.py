"""Integer graphs of what only an engine computes: attention, softmax, layer norm, products, other orders."""

from __future__ import annotations

import math

import numpy as np
from msgspec import structs

from stoker.deploy.floating.operations import FloatSoftmax
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import centred_squares
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.lowering.normalising import write_log_softmax
from stoker.deploy.lowering.writing import Writer
from tests.deploy.rtl.nets import NetBuilder

NORMAL_BITS = 10


class RowBuilder(NetBuilder):
    """The operations over rows and matrices besides."""

    def product(self, first: str, second: str, *, transposed: bool = False) -> str:
        return self._requantised(
            lambda output, by: op.MatMul(
                sources=(first, second), output=output, transposed=transposed, requantiser=by
            ),
            8, signed=True, channels=1,
        )  # fmt: skip

    def multiplied(self, first: str, second: str) -> str:
        return self._requantised(
            lambda output, by: op.Multiply(sources=(first, second), output=output, requantiser=by),
            8, signed=True, channels=1,
        )  # fmt: skip

    def summed(self, sources: tuple[str, ...]) -> str:
        factors = tuple(int(each) for each in self.random.integers(-40_000, 40_000, len(sources)))
        return self._requantised(
            lambda output, by: op.Add(sources=sources, output=output, multipliers=factors, requantiser=by),
            8, signed=True, channels=0,
        )  # fmt: skip

    def mean_of(self, source: str, axes: tuple[int, ...]) -> str:
        return self._requantised(
            lambda output, by: op.Mean(source=source, output=output, axes=axes, requantiser=by),
            8, signed=True, channels=1,
        )  # fmt: skip

    def shaped(self, source: str, shape: tuple[int, ...]) -> str:
        return self._add(op.Reshape(source=source, output=self._like(source, shape)))

    def permuted(self, source: str, order: tuple[int, ...]) -> str:
        return self._add(op.Permute(source=source, output=self._like(source), order=order))

    def cut(self, source: str, axis: int, start: int, stop: int, step: int = 1) -> str:
        return self._add(
            op.Slice(source=source, output=self._like(source), axis=axis, start=start, stop=stop, step=step)
        )

    def joined(self, axis: int, *sources: str) -> str:
        return self._add(op.Concat(sources=sources, output=self._like(sources[0]), axis=axis))

    def fixed(self, shape: tuple[int, ...]) -> str:
        output = self._value(shape, 8, signed=True)
        array = self._constant(self.random.integers(-128, 128, shape, dtype=np.int32))
        return self._add(op.FixedValue(output=output, array=array))

    def softmax(
        self, source: str, bits: int = 8, mask: np.ndarray | None = None, counts: str | None = None
    ) -> str:  # fmt: skip
        value = self.values[source]
        table = self._constant(np.rint(65535 * np.exp(-np.arange(1 << value.bits) * 0.03)).astype(np.uint16))
        output = self._value(value.shape, bits, signed=False, zero_point=0)
        name = None if mask is None else self._constant(mask)
        return self._add(op.Softmax(source=source, output=output, table=table, mask=name, counts=counts))

    def log_softmax(self, source: str) -> str:
        to = Writer()
        to.values, to.operations, to.constants = self.values, self.operations, self.constants  # type: ignore[assignment]
        return write_log_softmax(to, FloatSoftmax(name=f"{source}.log", sources=(source,), log=True), source, None)

    def layer_norm(self, source: str) -> str:
        value = self.values[source]
        size = value.shape[-1]
        epsilon = int(self.random.integers(0, 1000))
        largest = centred_squares(value, size) + epsilon
        root_bits = min(6, (62 - largest.bit_length()) // 2)
        root = max(1, math.isqrt((largest << (2 * root_bits)) // size))
        gain = self._constant(self.random.integers(-(1 << 15), 1 << 15, size, dtype=np.int32))
        offset = self._constant(self.random.integers(-(1 << 24), 1 << 24, size, dtype=np.int32))
        return self._requantised(
            lambda output, by: op.LayerNorm(
                source=source, output=output, gain=gain, offset=offset, epsilon=epsilon, root_bits=root_bits,
                reciprocal_bits=16 + root.bit_length(), normal_bits=NORMAL_BITS, requantiser=by,
            ),
            8, signed=True, channels=0,
        )  # fmt: skip


def attention(seed: int, *, tokens: int = 5, heads: int = 2, size: int = 3, masked: bool = True) -> IntegerGraph:
    """A transformer block of odd sizes, and orders, cuts and joins around it."""
    net = RowBuilder(seed, f"attention{seed}_")
    wide = heads * size
    start = net.input((tokens, wide))
    source = net.add(start, net.fixed((tokens, wide)))
    parts = [net.permuted(net.shaped(net.dense(source, wide), (tokens, heads, size)), (1, 0, 2)) for _ in range(3)]
    mask = np.tril(np.ones((tokens, tokens), np.int32)) if masked else None
    shares = net.softmax(net.product(parts[0], parts[1], transposed=True), mask=mask)
    mixed = net.shaped(net.permuted(net.product(shares, parts[2]), (1, 0, 2)), (tokens, wide))
    normal = net.layer_norm(net.add(mixed, source))
    hidden = net.table(net.dense(normal, wide + 1), 8)
    gated = net.multiplied(hidden, net.mean_of(hidden, (1,)))
    total = net.summed((gated, hidden, net.mean_of(hidden, (0,))))
    turned = net.permuted(net.joined(1, net.cut(total, 1, 1, wide + 1, 2), net.cut(total, 1, 0, 2)), (1, 0))
    return net.graph(net.dense(net.shaped(turned, (net.values[turned].elements,)), 7, 16), shares)


def counted(
    seed: int,
    shape: tuple[int, ...],
    counts: tuple[int, ...],
    *,
    masked: bool = False,
    bits: int = 8,
    share_bits: int = 8,
) -> IntegerGraph:
    """Shares of scores of which an input says what counts, and products with them.

    Args:
        seed: of all numbers.
        shape: of scores, the last two axes of one size.
        counts: of what counts.
        masked: whether a constant mask, with a row of which nothing counts, says so too.
        bits: of scores.
        share_bits: of shares.
    """
    net = RowBuilder(seed, f"counted{seed}_")
    scores = net.input(shape, bits, signed=bits < 16)
    kept = net.input(counts, 1, signed=False)
    mask = np.tril(np.ones(shape[-2:], np.int32), -1) if masked else None
    shares = net.softmax(scores, share_bits, mask, kept)
    return net.graph(shares, net.product(shares, net.input((*shape[:-1], 3))))


def classifier(seed: int, rows: int = 3, classes: int = 5) -> IntegerGraph:
    """Scores of rows, and the logarithms of their shares."""
    net = RowBuilder(seed, f"classifier{seed}_")
    scores = net.dense(net.input((rows, 7)), classes)
    net.values[scores] = structs.replace(net.values[scores], scale=0.05)  # several shares count, not the largest alone
    return net.graph(net.log_softmax(scores))
