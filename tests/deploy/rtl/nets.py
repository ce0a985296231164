"""Integer graphs made at random, of all that a dataflow design has units for: weights, widths, sizes, branches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stoker.deploy.arithmetic.computing import compute, sums_of
from stoker.deploy.arithmetic.requantising import multipliers_of
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.operations import Requantiser
from stoker.deploy.ir.shapes import shape_of
from stoker.deploy.ir.values import IntegerValue, ModelPort, type_range
from stoker.deploy.rtl.folding import Folding, works_of

_SEEN = 32


class NetBuilder:
    """Adds operations one by one; each takes names of values and returns the name of its result."""

    def __init__(self, seed: int, prefix: str = "", trained: int | None = None) -> None:
        self.random = np.random.default_rng(seed)
        self.numbers = self.random if trained is None else np.random.default_rng(trained)
        """Of weights, scales and zero points; with a seed of its own, networks of one structure have other numbers."""
        self.prefix = prefix
        self.values: dict[str, IntegerValue] = {}
        self.operations: list[op.Operation] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self.inputs: list[str] = []
        self.seen: dict[str, NDArray[np.int32]] = {}
        """What some random samples come to, by value: scales are chosen so that results differ."""

    def input(self, shape: Sequence[int], bits: int = 8, *, signed: bool = True) -> str:
        name = self._value(tuple(shape), bits, signed=signed)
        self.inputs.append(name)
        low, high = type_range(bits, signed)
        self.seen[name] = self.random.integers(low, high + 1, (_SEEN, *shape), dtype=np.int32)
        return name

    def dense(self, source: str, outputs: int, bits: int = 8, *, weight_bits: int = 8, signed: bool = True) -> str:
        inputs = self.values[source].shape[-1]
        weight, bias = self._weights((outputs, inputs), weight_bits)

        def made(output: str, by: Requantiser) -> op.Operation:
            return op.Linear(
                source=source, output=output, weight=weight, weight_bits=weight_bits, bias=bias, requantiser=by
            )

        return self._requantised(made, bits, signed=signed, channels=outputs)

    def conv(
        self, source: str, outputs: int, kernel: tuple[int, int] = (3, 3), bits: int = 8, *, weight_bits: int = 8,
        signed: bool = True, stride: tuple[int, int] = (1, 1), padding: tuple[int, int, int, int] = (0, 0, 0, 0),
        dilation: tuple[int, int] = (1, 1), groups: int = 1,
    ) -> str:  # fmt: skip
        inputs = self.values[source].shape[2]
        weight, bias = self._weights((outputs, *kernel, inputs // groups), weight_bits)

        def made(output: str, by: Requantiser) -> op.Operation:
            return op.Convolution(
                source=source, output=output, weight=weight, weight_bits=weight_bits, bias=bias, requantiser=by,
                stride=stride, padding=padding, dilation=dilation, groups=groups,
            )  # fmt: skip

        return self._requantised(made, bits, signed=signed, channels=outputs)

    def max_pool(
        self, source: str, kernel: tuple[int, int], stride: tuple[int, int],
        padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> str:  # fmt: skip
        output = self._like(source)
        return self._add(op.MaxPool(source=source, output=output, kernel=kernel, stride=stride, padding=padding))

    def sum_pool(
        self, source: str, kernel: tuple[int, int], stride: tuple[int, int],
        padding: tuple[int, int, int, int] = (0, 0, 0, 0), bits: int = 8,
    ) -> str:  # fmt: skip
        def made(output: str, by: Requantiser) -> op.Operation:
            return op.SumPool(
                source=source, output=output, kernel=kernel, stride=stride, padding=padding, requantiser=by
            )

        return self._requantised(made, bits, signed=True, channels=1)

    def mean(self, source: str, bits: int = 8) -> str:
        return self._requantised(
            lambda output, by: op.Mean(source=source, output=output, axes=(0, 1), requantiser=by),
            bits, signed=True, channels=1,
        )  # fmt: skip

    def add(self, first: str, second: str, bits: int = 8, *, signed: bool = True) -> str:
        factors = tuple(int(each) for each in self.numbers.integers(-40_000, 40_000, 2))
        return self._requantised(
            lambda output, by: op.Add(sources=(first, second), output=output, multipliers=factors, requantiser=by),
            bits, signed=signed, channels=0,
        )  # fmt: skip

    def rescale(self, source: str, bits: int = 8, *, signed: bool = True) -> str:
        return self._requantised(
            lambda output, by: op.Rescale(source=source, output=output, requantiser=by), bits, signed=signed, channels=1
        )

    def table(self, source: str, bits: int = 8, *, signed: bool = True) -> str:
        output = self._value(self.values[source].shape, bits, signed=signed)
        low, high = type_range(bits, signed)
        name = self._constant(self.numbers.integers(low, high + 1, 1 << self.values[source].bits, dtype=np.int32))
        return self._add(op.Table(source=source, output=output, table=name))

    def concat(self, *sources: str) -> str:
        output = self._like(sources[0])
        return self._add(op.Concat(sources=sources, output=output, axis=len(self.values[sources[0]].shape) - 1))

    def rows(self, shape: tuple[int, ...], size: int, *, num_rows: int = 11, bits: int = 8, bag: bool = False) -> str:
        """Rows of a table by indices of a new input; with ``bag`` sums over the last axis of the indices."""
        source = self._value(shape, 32, signed=True, zero_point=0)
        self.inputs.append(source)
        self.values[source] = structs.replace(self.values[source], low=0, high=num_rows - 1)
        self.seen[source] = self.random.integers(0, num_rows, (_SEEN, *shape), dtype=np.int32)
        low, high = type_range(bits, True)
        table = self._constant(self.numbers.integers(low, high + 1, (num_rows, size), dtype=np.int32))
        if not bag:
            output = self._value((1,), bits, signed=True)
            return self._add(op.Embedding(source=source, output=output, table=table))
        return self._requantised(
            lambda output, by: op.EmbeddingBag(
                source=source, output=output, table=table, table_bits=bits, requantiser=by
            ),
            bits, signed=True, channels=1,
        )  # fmt: skip

    def flat(self, source: str) -> str:
        output = self._like(source, (self.values[source].elements,))
        return self._add(op.Reshape(source=source, output=output))

    def graph(self, *outputs: str) -> IntegerGraph:
        ports = [
            tuple(
                ModelPort(
                    name=name, value=name, dtype="int64", shape=self.values[name].shape,
                    order=tuple(range(len(self.values[name].shape))),
                )
                for name in names
            )
            for names in (self.inputs, outputs)
        ]  # fmt: skip
        return checked(
            with_ranges(
                IntegerGraph(
                    inputs=ports[0],
                    outputs=ports[1],
                    values=self.values,
                    operations=tuple(self.operations),
                    constants=self.constants,
                )
            )
        )

    def _value(self, shape: tuple[int, ...], bits: int, *, signed: bool, zero_point: int | None = None) -> str:
        low, high = type_range(bits, signed)
        name = f"{self.prefix}v{len(self.values)}"
        self.values[name] = IntegerValue(
            name=name, shape=shape, bits=bits, signed=signed, scale=1.0, low=low, high=high,
            zero_point=int(self.numbers.integers(low // 2, high // 2 + 1)) if zero_point is None else zero_point,
        )  # fmt: skip
        return name

    def _like(self, source: str, shape: tuple[int, ...] | None = None) -> str:
        value = self.values[source]
        return self._value(shape or value.shape, value.bits, signed=value.signed, zero_point=value.zero_point)

    def _constant(self, array: NDArray[np.generic]) -> str:
        name = f"{self.prefix}c{len(self.constants)}"
        self.constants[name] = array
        return name

    def _weights(self, shape: tuple[int, ...], bits: int) -> tuple[str, str]:
        """Weights of all sizes; some channels are nothing or as large as they can be."""
        low, high = type_range(bits, True)
        weight = self.numbers.integers(low, high + 1, shape, dtype=np.int32)
        if shape[0] > 2:
            weight[0] = self.numbers.choice([0, low, high])
        bias = self.numbers.integers(-300, 300, shape[0], dtype=np.int32)
        return self._constant(weight.astype(np.int8)), self._constant(bias)

    def _requantised(self, made, bits: int, *, signed: bool, channels: int) -> str:
        """Adds an operation whose results use most of their bits.

        Args:
            made: from the result's name and a requantiser.
            bits: of the result.
            signed: whether it has a sign.
            channels: of which each has a multiplier; 1 for one multiplier, 0 for a shift alone.
        """
        output = self._value((1,), bits, signed=signed)
        low, high = type_range(bits, signed)
        zero_point = self.values[output].zero_point
        bare = made(output, Requantiser(multiplier=None, shift=0, zero_point=zero_point, low=low, high=high))
        sums = self._sums(bare)
        if isinstance(bare, (op.Linear, op.Convolution)):
            # Biases that bring sums to the middle of the result's range.
            bias = self.constants[bare.bias]
            bias -= sums.reshape(-1, len(bias)).mean(axis=0).astype(bias.dtype)
            sums = self._sums(bare)
        ratio = min((high - low + 1) / 4 / max(1.0, float(np.std(sums))), 60_000.0)
        clamp = zero_point if self.numbers.random() < 0.2 else low
        if channels:
            ratios = ratio * self.numbers.uniform(0.5, 1.0, channels)
            multipliers, shift = multipliers_of(ratios)
            by = Requantiser(
                multiplier=self._constant(multipliers), shift=shift, zero_point=zero_point, low=clamp, high=high
            )
        else:
            shift = max(0, math.floor(-math.log2(ratio)))
            by = Requantiser(multiplier=None, shift=shift, zero_point=zero_point, low=clamp, high=high)
        return self._add(made(output, by))

    def _sums(self, operation: op.Operation) -> NDArray[np.float64]:
        sources = [self.seen[name] for name in op.sources_of(operation)]
        return np.asarray(sums_of(operation, sources, self._so_far()), np.float64)

    def _so_far(self) -> IntegerGraph:
        return IntegerGraph(
            inputs=(), outputs=(), values=self.values, operations=tuple(self.operations), constants=self.constants
        )

    def _add(self, operation: op.Operation) -> str:
        name = operation.output
        if not isinstance(operation, op.Reshape):
            value = self.values[name]
            shape = shape_of(operation, self.values, self.constants)
            self.values[name] = IntegerValue(
                name=name, shape=shape, bits=value.bits, signed=value.signed, scale=value.scale,
                zero_point=value.zero_point, low=value.low, high=value.high,
            )  # fmt: skip
        self.operations.append(operation)
        sources = [self.seen[each] for each in op.sources_of(operation)]
        self.seen[name] = compute(operation, sources, self._so_far(), _SEEN)
        return name


def together(graphs: Iterable[IntegerGraph]) -> IntegerGraph:
    """Graphs side by side as one, so that they are built into one simulator; their names must differ."""
    found = list(graphs)
    return IntegerGraph(
        inputs=tuple(port for graph in found for port in graph.inputs),
        outputs=tuple(port for graph in found for port in graph.outputs),
        values={name: value for graph in found for name, value in graph.values.items()},
        operations=tuple(each for graph in found for each in graph.operations),
        constants={name: array for graph in found for name, array in graph.constants.items()},
    )


def random_foldings(graph: IntegerGraph, seed: int) -> dict[str, Folding]:
    """Any folding of each layer that has one."""
    random = np.random.default_rng(seed)
    found: dict[str, Folding] = {}
    for name, work in works_of(graph).items():
        choices = sorted(work.foldings())
        found[name] = choices[int(random.integers(len(choices)))]
    return found


def residual_digits(seed: int = 0) -> IntegerGraph:
    """The shape of a small residual network for digits of 8 x 8 points."""
    net = NetBuilder(seed)
    source = net.input((8, 8, 1), 8, signed=False)
    one = (1, 1, 1, 1)
    first = net.conv(source, 8, padding=one, signed=False)
    second = net.conv(first, 16, padding=one, signed=False)
    pooled = net.max_pool(second, (2, 2), (2, 2))
    third = net.conv(pooled, 16, padding=one)
    joined = net.add(third, pooled)
    hidden = net.dense(net.flat(joined), 32)
    return net.graph(net.dense(hidden, 10))


def any_net(seed: int, prefix: str = "", trained: int | None = None) -> IntegerGraph:
    """A network with branches of odd sizes, strides, groups and widths, all drawn from a seed; numbers from another."""
    net = NetBuilder(seed, prefix, trained)
    random = net.random

    def one_of(*choices):
        return choices[int(random.integers(len(choices)))]

    def bits() -> int:
        return int(random.integers(4, 9))

    height, width = int(random.integers(1, 8)), int(random.integers(2, 8))
    at = net.input((height, width, one_of(1, 2, 3, 4, 6)), bits(), signed=one_of(True, False))
    for _ in range(int(random.integers(1, 5))):
        height, width, channels = net.values[at].shape
        kernel = (one_of(*range(1, min(3, height) + 1)), one_of(*range(1, min(3, width) + 1)))
        inner = tuple(int(random.integers(0, size)) for size in (kernel[0], kernel[0], kernel[1], kernel[1]))
        stride = (one_of(1, 1, 2), one_of(1, 1, 2, 3))
        match one_of("conv", "conv", "depthwise", "groups", "residual", "pool", "sum", "table", "rescale", "concat"):
            case "conv":
                fits = kernel[0] * 2 - 1 <= height and kernel[1] * 2 - 1 <= width
                at = net.conv(
                    at, one_of(1, 2, 4, 6), kernel, bits(), weight_bits=int(random.integers(2, 9)), stride=stride,
                    padding=inner, dilation=(2, 2) if fits and one_of(True, False) else (1, 1),
                    signed=one_of(True, False),
                )  # fmt: skip
            case "depthwise":
                at = net.conv(at, channels, kernel, bits(), stride=stride, padding=inner, groups=channels)
            case "groups":
                groups = one_of(*(each for each in range(1, channels + 1) if channels % each == 0))
                at = net.conv(at, groups * one_of(1, 2), kernel, bits(), padding=inner, groups=groups)
            case "residual":
                grow = (kernel[0] - 1 - (kernel[0] - 1) // 2, (kernel[0] - 1) // 2)
                wide = (kernel[1] - 1 - (kernel[1] - 1) // 2, (kernel[1] - 1) // 2)
                side = net.conv(at, channels, kernel, bits(), padding=(*grow, *wide))
                if one_of(True, False):
                    side = net.conv(side, channels, kernel, bits(), padding=(*grow, *wide))
                at = net.add(*one_of((side, at), (at, side)), bits(), signed=one_of(True, False))
            case "pool":
                at = net.max_pool(at, kernel, stride, inner)
            case "sum":
                at = net.sum_pool(at, kernel, stride, inner, bits())
            case "table":
                at = net.add(net.table(at, bits()), at, bits())
            case "rescale":
                at = net.rescale(at, bits(), signed=one_of(True, False))
            case _:
                value = net.values[at]
                side = net.conv(at, one_of(1, 2, 3), (1, 1), value.bits, signed=value.signed)
                like = net.values[side]
                at = net.concat(side, net.max_pool(side, (1, 1), (1, 1))) if like.shape else at
    if one_of(True, False):
        at = net.mean(at, bits())
    return net.graph(net.dense(net.flat(at), one_of(1, 3, 4, 10), bits(), weight_bits=int(random.integers(2, 9))))


def tower(seed: int, prefix: str = "", trained: int | None = None) -> IntegerGraph:
    """Rows of two tables, a sum of rows of a third, and plain numbers, through two dense layers."""
    net = NetBuilder(seed, prefix, trained)
    first, second = net.rows((), 6), net.rows((), 4, num_rows=5)
    bag, plain = net.rows((5,), 8, bag=True), net.input((4,))
    for name in (first, second, plain):  # numbers side by side have one zero point
        net.values[name] = structs.replace(net.values[name], zero_point=net.values[bag].zero_point)
    return net.graph(net.dense(net.dense(net.concat(first, second, bag, plain), 8), 3))
