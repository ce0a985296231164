"""The designs that the resource model is fitted to.

Single units over their sizes, widths and foldings, and a few designs of several, which show what streams, joins and the
frame around a design take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import MOST_INDEX_BITS, ModelPort, type_range
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer
from stoker.deploy.rtl.folding import Folding

_SEED = 7
_SHIFT = 4.0
"""Spread of results on their grid, in powers of two below its size: as of layers whose ranges were measured."""
_FULL = 1 / 8
"""Part of that with which sums of random weights reach most results: thresholds that no sum reaches would vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """A design to be synthesised.

    Attributes:
        name: of it.
        graph: with random weights: synthesis drops what constants make needless.
        foldings: of its layers.
        constant: layers whose weights are part of the circuit.
        thresholds: layers whose requantisers compare with thresholds.
    """

    name: str
    graph: IntegerGraph
    foldings: Mapping[str, Folding]
    constant: Collection[str] = ()
    thresholds: Collection[str] = ()


class _Sketch:
    """Writes a small graph; each layer is named in order, with its folding."""

    def __init__(self, *, own_inputs: bool = False) -> None:
        """Results are small as if inputs had 8 bits; with ``own_inputs`` they use all of their range."""
        self.own_inputs = own_inputs
        self.to = Writer()
        self.chance = np.random.default_rng(_SEED)
        self.inputs: list[str] = []
        self.foldings: dict[str, Folding] = {}
        self.constant: list[str] = []
        self.thresholds: list[str] = []

    def input(self, *shape: int, bits: int = 8, signed: bool = False) -> str:
        made = self.to.value("x", shape, _grid(bits, signed))
        self.inputs.append(made)
        return made

    def dense(
        self, source: str, outputs: int, fold: tuple[int, int], *, weights: int = 8, bits: int = 8, shift: bool = False
    ) -> str:
        inputs = self.to.values[source].shape[-1]
        name = self.to.value("dense", (outputs,), _grid(bits, False))
        weight, bias = self._weights(name, (outputs, inputs), weights)
        self.foldings[name] = Folding(*fold)
        by = self._law(name, outputs, inputs, weights, source, shift=shift)
        return self.to.write(
            op.Linear(source=source, output=name, weight=weight, weight_bits=weights, bias=bias, requantiser=by)
        )

    def conv(
        self, source: str, outputs: int, fold: tuple[int, int, int], *, kernel: int = 3, weights: int = 8,
        bits: int = 8, signed: bool = False, stride: int = 1, groups: int = 1, shift: bool = False,
    ) -> str:  # fmt: skip
        channels, edge = self.to.values[source].shape[2], (kernel - 1) // 2
        name = self.to.value("conv", (1, 1, outputs), _grid(bits, signed))
        weight, bias = self._weights(name, (outputs, kernel, kernel, channels // groups), weights)
        self.foldings[name] = Folding(*fold)
        by = self._law(name, outputs, kernel * kernel * channels // groups, weights, source, shift=shift)
        return self.to.write_shaped(
            op.Convolution(
                source=source, output=name, weight=weight, weight_bits=weights, bias=bias, requantiser=by,
                stride=(stride, stride), padding=(edge, edge, edge, edge), groups=groups,
            )
        )  # fmt: skip

    def in_circuit(self, layer: str) -> str:
        """Puts a layer's weights into the circuit; its folding spans whole windows."""
        self.constant.append(layer)
        return layer

    def compared(self, layer: str) -> str:
        """Gives a layer thresholds in place of multipliers."""
        self.thresholds.append(layer)
        return layer

    def max_pool(self, source: str, size: int = 2) -> str:
        name = self.to.value("pool", (1, 1, 1), self.to.grid(source))
        return self.to.write_shaped(
            op.MaxPool(source=source, output=name, kernel=(size, size), stride=(size, size))
        )  # fmt: skip

    def mean_pool(self, source: str, size: int = 2) -> str:
        name = self.to.value("pool", (1, 1, 1), _grid(8, False))
        by = self._law(name, 1, size * size, 1)
        return self.to.write_shaped(
            op.SumPool(
                source=source,
                output=name,
                kernel=(size, size),
                stride=(size, size),
                padding=(0, 0, 0, 0),
                requantiser=by,
            )
        )

    def mean(self, source: str) -> str:
        height, width, _ = self.to.values[source].shape
        name = self.to.value("mean", (1, 1, 1), _grid(8, False))
        by = self._law(name, 1, height * width, 1)
        return self.to.write_shaped(op.Mean(source=source, output=name, axes=(0, 1), requantiser=by))

    def add(self, first: str, second: str) -> str:
        name = self.to.value("add", self.to.values[first].shape, _grid(8, False))
        by = op.Requantiser(multiplier=None, shift=15, zero_point=0, low=0, high=255)
        return self.to.write(
            op.Add(sources=(first, second), output=name, multipliers=(23_171, 11_997), requantiser=by)
        )  # fmt: skip

    def rescale(self, source: str) -> str:
        name = self.to.value("scaled", self.to.values[source].shape, _grid(8, True))
        return self.to.write(op.Rescale(source=source, output=name, requantiser=self._law(name, 1, 1, 1)))

    def table(self, source: str) -> str:
        name = self.to.value("table", self.to.values[source].shape, _grid(8, True))
        entries = self.chance.integers(-128, 128, 1 << self.to.values[source].bits)
        return self.to.write(op.Table(source=source, output=name, table=self.to.constant(f"{name}.t", entries)))

    def rows(self, count: int, size: int, bag: int = 0) -> str:
        """Rows of a table by an index, or sums of ``bag`` of them."""
        shape = (bag,) if bag else ()
        index = self.to.value("i", shape, _grid(MOST_INDEX_BITS, True), (0, count - 1))
        self.inputs.append(index)
        name = self.to.value("rows", (size,), _grid(8, True))
        table = self.to.constant(f"{name}.t", self.chance.integers(-128, 128, (count, size)))
        if not bag:
            return self.to.write(op.Embedding(source=index, output=name, table=table))
        by = self._law(name, 1, bag, 1)
        return self.to.write(
            op.EmbeddingBag(source=index, output=name, table=table, table_bits=8, requantiser=by)
        )  # fmt: skip

    def concat(self, *sources: str) -> str:
        size = sum(self.to.values[each].shape[-1] for each in sources)
        name = self.to.value("joined", (size,), self.to.grid(sources[0]))
        return self.to.write(op.Concat(sources=sources, output=name, axis=0))

    def flat(self, source: str) -> str:
        return self.to.reshaped(source, (self.to.values[source].elements,))

    def specimen(self, name: str, output: str) -> Specimen:
        ports = [
            tuple(
                ModelPort(
                    name=each, value=each, dtype="int64", shape=self.to.values[each].shape,
                    order=tuple(range(len(self.to.values[each].shape))),
                )
                for each in names
            )
            for names in (self.inputs, [output])
        ]  # fmt: skip
        graph = IntegerGraph(
            inputs=ports[0], outputs=ports[1], values=self.to.values, operations=tuple(self.to.operations),
            constants=self.to.constants,
        )  # fmt: skip
        return Specimen(
            name=name, graph=checked(with_ranges(graph)), foldings=self.foldings, constant=tuple(self.constant),
            thresholds=tuple(self.thresholds),
        )  # fmt: skip

    def _weights(self, name: str, shape: tuple[int, ...], bits: int) -> tuple[str, str]:
        low, high = type_range(bits, True)
        weight = self.chance.integers(low, high + 1, shape)
        bias = self.chance.integers(-(1 << (bits + 4)), 1 << (bits + 4), shape[0])
        return self.to.constant(f"{name}.w", weight), self.to.constant(f"{name}.b", bias)

    def _law(
        self, name: str, channels: int, products: int, weights: int, source: str = "", *, shift: bool = False
    ) -> op.Requantiser:
        grid = self.to.grid(name)
        spread = 256.0 * (1 << weights) * np.sqrt(products) / (1 << grid.bits) * _SHIFT
        if self.own_inputs and source:
            spread *= _FULL * 2.0 ** (self.to.values[source].bits - 8)
        if shift:
            ends = grid.ends
            return op.Requantiser(
                multiplier=None, shift=round(np.log2(spread)), zero_point=0, low=ends[0], high=ends[1]
            )  # fmt: skip
        return self.to.requantiser(name, self.chance.uniform(0.5, 1.0, channels) / spread, grid)


def _grid(bits: int, signed: bool) -> Grid:
    return Grid(bits=bits, signed=signed, scale=1.0, zero_point=0)


def specimens() -> tuple[Specimen, ...]:
    """All of them, in an order that does not change."""
    return tuple(made() for made in (*_DENSE, *_IMAGES, *_SEVERAL, *_CONSTANT))


def narrow_specimens() -> tuple[Specimen, ...]:
    """Those whose products some families leave to lookup tables, to be synthesised for these."""
    return tuple(made() for made in _NARROW)


def small_specimens() -> tuple[Specimen, ...]:
    """More of those with weights in the circuit, for families whose parts have room for few of the others."""
    return tuple(made() for made in _SMALL)


def compared_specimens() -> tuple[Specimen, ...]:
    """Those with requantisers by thresholds, for families that have no other multipliers than lookup tables."""
    return tuple(made() for made in _COMPARED)


def _dense(
    inputs: int, outputs: int, fold: tuple[int, int], weights: int = 8, bits: int = 8, shift: int = 0
) -> Specimen:
    net = _Sketch()
    name = f"dense {inputs}-{outputs} {fold[0]}x{fold[1]} w{weights}a{bits}{' shift' * shift}"
    source = net.input(inputs, bits=bits)
    return net.specimen(name, net.dense(source, outputs, fold, weights=weights, bits=bits, shift=bool(shift)))


def _conv(
    size: int, channels: int, outputs: int, fold: tuple[int, int, int], kernel: int = 3, stride: int = 1,
    groups: int = 1, weights: int = 8, shift: int = 0,
) -> Specimen:  # fmt: skip
    net = _Sketch()
    name = f"conv {size}x{size}x{channels}-{outputs} k{kernel}s{stride}g{groups} {'x'.join(map(str, fold))} w{weights}"
    source = net.input(size, size, channels)
    made = net.conv(
        source, outputs, fold, kernel=kernel, stride=stride, groups=groups, weights=weights, shift=bool(shift)
    )  # fmt: skip
    return net.specimen(name + " shift" * shift, made)


def _pooled(kind: str) -> Specimen:
    net = _Sketch()
    source = net.input(8, 8, 8)
    made = {"max": net.max_pool, "mean": net.mean_pool, "global": net.mean}[kind](source)
    return net.specimen(f"pool {kind}", made)


def _residual() -> Specimen:
    net = _Sketch()
    source = net.input(8, 8, 8)
    return net.specimen("conv, add", net.add(net.conv(source, 8, (1, 2, 1)), source))


def _pooling() -> Specimen:
    net = _Sketch()
    found = net.max_pool(net.conv(net.input(8, 8, 4), 8, (2, 1, 3)))
    return net.specimen("conv, pool, dense", net.dense(net.flat(found), 10, (1, 2)))


def _activated() -> Specimen:
    net = _Sketch()
    found = net.table(net.dense(net.input(32), 16, (2, 1)))
    return net.specimen("dense, table, dense", net.dense(found, 10, (2, 1)))


def _separable() -> Specimen:
    net = _Sketch()
    found = net.conv(net.conv(net.input(8, 8, 8), 8, (1, 1, 3), groups=8), 16, (1, 4, 1), kernel=1)
    return net.specimen("depthwise, pointwise, mean, dense", net.dense(net.flat(net.mean(found)), 10, (1, 1)))


def _two_dense() -> Specimen:
    net = _Sketch()
    return net.specimen("dense, dense", net.dense(net.dense(net.input(48), 24, (3, 2)), 10, (1, 4)))


def _tower() -> Specimen:
    net = _Sketch()
    found = net.concat(net.rows(200, 8), net.rows(50, 8, bag=5), net.input(4, signed=True))
    return net.specimen("rows, bag, concat, dense", net.dense(found, 16, (1, 2)))


def _rescaled() -> Specimen:
    net = _Sketch()
    return net.specimen("rescale, conv", net.conv(net.rescale(net.input(8, 8, 4)), 4, (1, 1, 1)))


def _constant_dense(inputs: int, outputs: int, results: int, weights: int, bits: int = 8, shift: int = 0) -> Specimen:
    net = _Sketch()
    name = f"constant dense {inputs}-{outputs} {results} w{weights}a{bits}{' shift' * shift}"
    source = net.input(inputs, bits=bits)
    made = net.dense(source, outputs, (results, inputs), weights=weights, bits=bits, shift=bool(shift))
    return net.specimen(name, net.in_circuit(made))


def _constant_conv(
    size: int, channels: int, outputs: int, results: int, weights: int, kernel: int = 3, shift: int = 0
) -> Specimen:  # fmt: skip
    net = _Sketch()
    name = f"constant conv {size}x{size}x{channels}-{outputs} k{kernel} {results} w{weights}{' shift' * shift}"
    fold = (results, channels, kernel * kernel)
    made = net.conv(net.input(size, size, channels), outputs, fold, kernel=kernel, weights=weights, shift=bool(shift))
    return net.specimen(name, net.in_circuit(made))


def _compared_dense(inputs: int, outputs: int, fold: tuple[int, int], weights: int = 4, bits: int = 4) -> Specimen:
    net = _Sketch(own_inputs=True)
    name = f"compared dense {inputs}-{outputs} {fold[0]}x{fold[1]} w{weights}a{bits}"
    made = net.dense(net.input(inputs, bits=bits), outputs, fold, weights=weights, bits=bits)
    return net.specimen(name, net.compared(made))


def _compared_conv(
    size: int, channels: int, outputs: int, fold: tuple[int, int, int], kernel: int = 3, groups: int = 1, bits: int = 4
) -> Specimen:  # fmt: skip
    net = _Sketch(own_inputs=True)
    name = f"compared conv {size}x{size}x{channels}-{outputs} k{kernel}g{groups} {'x'.join(map(str, fold))} w4a{bits}"
    source = net.input(size, size, channels, bits=bits)
    made = net.conv(source, outputs, fold, kernel=kernel, weights=4, bits=bits, groups=groups)
    return net.specimen(name, net.compared(made))


def _compared_constant() -> Specimen:
    net = _Sketch(own_inputs=True)
    made = net.dense(net.input(24, bits=4), 8, (2, 24), weights=4, bits=4)
    return net.specimen("compared constant dense 24-8 2 w4a4", net.compared(net.in_circuit(made)))


def _compared_network(layers: int) -> Specimen:
    """Convolutions and dense layers of 4 bits, of which the first ones compare."""
    net = _Sketch(own_inputs=True)
    made = [net.conv(net.input(8, 8, 1, bits=4), 8, (1, 1, 3), weights=4, bits=4)]
    made.append(net.conv(net.max_pool(made[0]), 16, (2, 4, 1), weights=4, bits=4))
    made.append(net.dense(net.flat(net.max_pool(made[1])), 32, (1, 4), weights=4, bits=4))
    for each in made[:layers]:
        net.compared(each)
    last = net.dense(made[2], 10, (1, 2), weights=4)
    return net.specimen(f"compared network, {layers} layers", last)


def _half_constant() -> Specimen:
    """Three layers, of which the first and the last have their weights in the circuit."""
    net = _Sketch()
    found = net.in_circuit(net.conv(net.input(8, 8, 1), 8, (8, 1, 9), weights=4))
    found = net.max_pool(net.conv(found, 8, (1, 4, 1)))
    last = net.in_circuit(net.dense(net.dense(net.flat(found), 16, (1, 4)), 10, (2, 16), weights=6))
    return net.specimen("constant conv, conv, pool, dense, constant dense", last)


def _network(name: str, folds: tuple[tuple[int, int, int], ...]) -> Specimen:
    """Two convolutions, a pool, a residual convolution and two dense layers: what clocks of larger designs are."""
    net = _Sketch()
    found = net.conv(net.conv(net.input(8, 8, 1), 8, folds[0]), 16, folds[1])
    pooled = net.max_pool(found)
    joined = net.add(net.conv(pooled, 16, folds[2]), pooled)
    hidden = net.dense(net.flat(joined), 32, folds[3][:2])
    return net.specimen(name, net.dense(hidden, 10, folds[4][:2]))


_Made = Callable[[], Specimen]
_DENSE: tuple[_Made, ...] = (
    partial(_dense, 64, 16, (1, 1)),
    partial(_dense, 64, 16, (4, 2)),
    partial(_dense, 64, 16, (2, 8)),
    partial(_dense, 64, 16, (8, 1), 8, 8, 1),
    partial(_dense, 256, 32, (1, 16), 4),
    partial(_dense, 96, 10, (10, 1)),
    partial(_dense, 32, 8, (8, 4), 4, 4),
    partial(_dense, 8, 4, (4, 8)),
    partial(_dense, 128, 64, (1, 2), 2, 6),
    partial(_dense, 512, 64, (2, 4), 6),
)
_NARROW: tuple[_Made, ...] = (
    partial(_dense, 64, 16, (4, 2), 3, 4),
    partial(_dense, 32, 16, (8, 4), 2, 4),
)
_IMAGES: tuple[_Made, ...] = (
    partial(_conv, 8, 1, 8, (1, 1, 1)),
    partial(_conv, 8, 1, 8, (2, 1, 3)),
    partial(_conv, 8, 1, 8, (1, 1, 9)),
    partial(_conv, 8, 8, 16, (2, 2, 1)),
    partial(_conv, 8, 8, 16, (4, 1, 3), 3, 1, 1, 4),
    partial(_conv, 8, 8, 16, (2, 2, 9)),
    partial(_conv, 16, 4, 8, (1, 4, 1), 5, 2),
    partial(_conv, 8, 16, 16, (2, 2, 3), 3, 1, 16),
    partial(_conv, 12, 8, 8, (1, 1, 1), 3, 1, 8),
    partial(_conv, 4, 16, 16, (4, 4, 1)),
    partial(_conv, 8, 12, 24, (3, 4, 1), 1),
    partial(_conv, 28, 1, 8, (2, 1, 5), 5),
    partial(_conv, 8, 8, 8, (2, 2, 1), 3, 1, 1, 8, 1),
    partial(_conv, 32, 16, 16, (2, 8, 1)),
    partial(_conv, 8, 8, 8, (2, 1, 1), 3, 2, 2, 6),
    partial(_pooled, "max"),
    partial(_pooled, "mean"),
    partial(_pooled, "global"),
)
_SEVERAL: tuple[_Made, ...] = (
    _residual,
    _pooling,
    _activated,
    _separable,
    _two_dense,
    _tower,
    _rescaled,
    partial(_network, "network, 23 multipliers", ((1, 1, 1), (1, 4, 3), (1, 2, 3), (1, 2, 1), (1, 1, 1))),
    partial(_network, "network, 58 multipliers", ((1, 1, 3), (4, 8, 1), (1, 4, 3), (1, 8, 1), (1, 1, 1))),
)


_CONSTANT: tuple[_Made, ...] = (
    partial(_constant_dense, 16, 8, 8, 8),
    partial(_constant_dense, 32, 10, 5, 4, 8, 1),
    partial(_constant_dense, 24, 8, 2, 4),
    partial(_constant_dense, 32, 16, 16, 2, 8, 1),
    partial(_constant_dense, 24, 8, 1, 6, 8, 1),
    partial(_constant_conv, 8, 1, 8, 8, 8),
    partial(_constant_conv, 8, 1, 8, 2, 4, 3, 1),
    partial(_constant_conv, 8, 4, 8, 2, 4),
    partial(_constant_conv, 6, 8, 8, 4, 8, 1),
    _half_constant,
)
"""Layers whose weights are part of the circuit."""
_SMALL: tuple[_Made, ...] = (
    partial(_constant_dense, 20, 6, 3, 5, 8, 1),
    partial(_constant_conv, 8, 2, 6, 3, 4, 3, 1),
    partial(_constant_conv, 6, 8, 10, 5, 5, 1, 1),
)
_COMPARED: tuple[_Made, ...] = (
    partial(_compared_dense, 64, 16, (1, 1)),
    partial(_compared_dense, 64, 16, (4, 2)),
    partial(_compared_dense, 96, 10, (10, 1)),
    partial(_compared_dense, 8, 4, (4, 8)),
    partial(_compared_dense, 128, 64, (1, 2), 2),
    partial(_compared_dense, 64, 16, (1, 2), 4, 6),
    partial(_compared_dense, 64, 16, (1, 1), 4, 8),
    partial(_compared_conv, 8, 4, 8, (2, 4, 1)),
    partial(_compared_conv, 8, 8, 16, (4, 1, 3)),
    partial(_compared_conv, 8, 8, 24, (3, 4, 1), 1),
    partial(_compared_conv, 12, 8, 8, (1, 1, 1), 3, 8),
    _compared_constant,
    partial(_compared_network, 3),
    partial(_compared_network, 1),
)
"""Layers whose results are found by comparing sums with thresholds."""


def small_networks() -> tuple[Specimen, ...]:
    """Networks with so few foldings that all combinations can be enumerated, to judge a solver by."""
    return _two_small(), _small_image(), _small_residual()


def _two_small() -> Specimen:
    net = _Sketch()
    return net.specimen("dense 12-8, dense 4", net.dense(net.dense(net.input(12), 8, (1, 1)), 4, (1, 1)))


def _small_image() -> Specimen:
    net = _Sketch()
    pooled = net.max_pool(net.conv(net.input(4, 4, 2), 4, (1, 1, 1)))
    return net.specimen("conv 4x4x2-4, pool, dense 4", net.dense(net.flat(pooled), 4, (1, 1)))


def _small_residual() -> Specimen:
    net = _Sketch()
    source = net.input(4, 4, 4)
    return net.specimen(
        "conv 4x4x4-4, add, conv 2", net.conv(net.add(net.conv(source, 4, (1, 1, 1)), source), 2, (1, 1, 1))
    )
