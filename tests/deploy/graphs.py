"""Integer graphs made by hypothesis: residual images with strides, groups and pools, odd sizes, extreme numbers.

With all operations there are products of two values, layer norms, slices, and tables by the columns of another input.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from stoker.deploy.floating.operations import FloatNorm, FloatSoftmax
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.pruning import pruned
from stoker.deploy.ir.row_numbers import UNREAD, highs_of
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.normalising import write_log_softmax, write_norm
from stoker.deploy.lowering.writing import Writer

OUTPUT = "y"


class Maker:
    """Draws a graph, a block at a time."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.to = draw, Writer()
        self.ports: list[ModelPort] = []
        """Inputs other than the image."""
        self.chance = np.random.default_rng(draw(st.integers(0, 2**31)))

    def grid(self) -> Grid:
        bits, signed = self.draw(st.integers(2, 8)), self.draw(st.booleans())
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        return Grid(bits=bits, signed=signed, scale=0.1, zero_point=self.draw(st.integers(low, high)))

    def weights(self, shape: tuple[int, ...], bits: int) -> np.ndarray:
        """Small, extreme or zero, some output channels zero as a whole."""
        high = (1 << (bits - 1)) - 1
        kind = self.draw(st.sampled_from(["any", "ends", "zeros"]))
        found = self.chance.integers(-high, high + 1, shape)
        if kind == "ends":
            found = np.where(found < 0, -high - 1, high)
        if kind == "zeros":
            found[self.chance.random(shape[0]) < 0.5] = 0
        return found

    def requantiser(self, name: str, channels: int, typical: float, grid: Grid) -> op.Requantiser:
        low, high = grid.ends
        if self.draw(st.booleans()):
            low = grid.zero_point  # a rectifier
        if self.draw(st.integers(0, 3)) == 0:
            shift = max(0, round(np.log2(typical)))
            return op.Requantiser(multiplier=None, shift=shift, zero_point=grid.zero_point, low=low, high=high)
        ratios = np.abs(self.chance.normal(1, 0.5, channels)) * (high - low + 1) / 4 / typical
        return self.to.requantiser(name, ratios, grid, (low, high))

    def convolution(self, source: str) -> str:
        height, width, channels = self.to.values[source].shape
        groups = self.draw(st.sampled_from([each for each in (1, 2, 3, channels) if channels % each == 0]))
        outputs = groups * self.draw(st.integers(1, 3))
        kernel = self.draw(st.integers(1, min(3, height))), self.draw(st.integers(1, min(3, width)))
        dilation = tuple(
            2 if 2 * (k - 1) < size and self.draw(st.booleans()) else 1
            for k, size in zip(kernel, (height, width), strict=True)
        )
        stride = self.draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
        padding = tuple(self.draw(st.integers(0, 2)) for _ in range(4))
        bits, grid = self.draw(st.integers(2, 8)), self.grid()
        weight = self.weights((outputs, *kernel, channels // groups), bits)
        bias = self.chance.integers(-1000, 1000, outputs)
        name = self.to.value("conv", (1, 1, outputs), grid)
        typical = 4.0 * (1 << bits) * np.sqrt(weight[0].size)
        return self.to.write_shaped(
            op.Convolution(
                source=source,
                output=name,
                weight=self.to.constant(f"{name}.w", weight),
                weight_bits=bits,
                bias=self.to.constant(f"{name}.b", bias),
                stride=stride,
                padding=padding,
                dilation=dilation,
                groups=groups,
                requantiser=self.requantiser(name, outputs, typical, grid),
            )
        )

    def pool(self, source: str) -> str:
        height, width, channels = self.to.values[source].shape
        kernel = self.draw(st.integers(1, min(3, height))), self.draw(st.integers(1, min(3, width)))
        stride = self.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
        padding = tuple(self.draw(st.integers(0, kernel[at // 2] - 1)) for at in range(4))
        own = self.to.grid(source)
        if self.draw(st.booleans()):
            name = self.to.value("max", (1, 1, channels), own)
            return self.to.write_shaped(
                op.MaxPool(source=source, output=name, kernel=kernel, stride=stride, padding=padding)
            )
        grid = self.grid()
        name = self.to.value("sum", (1, 1, channels), grid)
        by = self.requantiser(name, channels, 64.0, grid)
        return self.to.write_shaped(
            op.SumPool(source=source, output=name, kernel=kernel, stride=stride, padding=padding, requantiser=by)
        )

    def residual(self, source: str) -> str:
        """A value and what another operation makes of it, joined."""
        grid, kind = self.grid(), self.draw(st.sampled_from(["add", "multiply", "concat"]))
        shape = self.to.values[source].shape
        table = self.chance.integers(*grid.ends, 1 << self.to.values[source].bits, endpoint=True)
        other = self.to.value("table", shape, grid)
        self.to.write(op.Table(source=source, output=other, table=self.to.constant(f"{other}.t", table)))
        own = self.grid()
        if kind == "concat":
            parts = [self.to.rescaled(each, own) for each in (source, other)]
            axis = self.draw(st.integers(0, 2))
            joined = list(shape)
            joined[axis] *= 2
            name = self.to.value("concat", joined, own)
            return self.to.write(op.Concat(sources=tuple(parts), output=name, axis=axis))
        name = self.to.value(kind, shape, own)
        if kind == "multiply":
            by = self.requantiser(name, 1, 500.0, own)
            return self.to.write(op.Multiply(sources=(source, other), output=name, requantiser=by))
        low, high = own.ends
        shift = self.draw(st.integers(0, 15))
        factors = tuple(self.draw(st.integers(-(1 << shift), 1 << shift)) for _ in range(2))
        by = op.Requantiser(multiplier=None, shift=shift, zero_point=own.zero_point, low=low, high=high)
        return self.to.write(op.Add(sources=(source, other), output=name, multipliers=factors, requantiser=by))

    def product(self, source: str) -> str:
        """Products of the pixels of a value with those of another one, or with each other."""
        height, width, channels = self.to.values[source].shape
        row = self.to.reshaped(source, (height * width, channels))
        if height * width > 16:
            cut = self.to.moved(row, (16, channels))
            row = self.to.write(op.Slice(source=row, output=cut, axis=0, start=0, stop=16, step=1))
        places = self.to.values[row].shape[0]
        grid = self.grid()
        transposed = self.draw(st.booleans())
        other, columns = row, places
        if not transposed:
            turned = self.to.moved(row, (channels, places))
            other = self.to.write(op.Permute(source=row, output=turned, order=(1, 0)))
        name = self.to.value("product", (places, columns), grid)
        by = self.requantiser(name, 1, 64.0 * channels, grid)
        self.to.write(op.MatMul(sources=(row, other), output=name, transposed=transposed, requantiser=by))
        return self.to.reshaped(name, (places, columns, 1))

    def norm(self, source: str) -> str:
        """A layer norm over channels."""
        size, grid = self.to.values[source].shape[-1], self.grid()
        gain, offset = self.chance.normal(1, 0.5, size), self.chance.normal(0, 0.5, size)
        each = FloatNorm(name="norm", sources=(), gain=gain, offset=offset, eps=self.draw(st.sampled_from([1e-5, 0.1])))
        return write_norm(self.to, each, source, grid, None)

    def cut(self, source: str) -> str:
        """Some parts along an axis."""
        shape, axis = list(self.to.values[source].shape), self.draw(st.integers(0, 2))
        start = self.draw(st.integers(0, shape[axis] - 1))
        stop = self.draw(st.integers(start + 1, shape[axis]))
        step = self.draw(st.integers(1, 2))
        shape[axis] = len(range(start, stop, step))
        name = self.to.moved(source, shape)
        return self.to.write(op.Slice(source=source, output=name, axis=axis, start=start, stop=stop, step=step))

    def rows(self, source: str) -> str:
        """A value and rows of tables of different sizes by columns of one input, or their sums; both are added."""
        size, grid = self.to.values[source].shape[-1], self.grid()
        counts = [self.draw(st.integers(1, 9)) for _ in range(3)]
        highs = np.array([*(each - 1 for each in counts), UNREAD])
        own = Grid(bits=4, signed=False, scale=1.0, zero_point=0)
        numbers = self.to.row_numbers("rows", highs, own)
        self.ports.append(ModelPort(name=numbers, value=numbers, dtype="int64", shape=(4,), order=(0,)))
        column = self.draw(st.integers(0, 2))
        bagged = self.draw(st.booleans())
        stop = self.draw(st.integers(column + 1, 3)) if bagged else column + 1
        cut = self.to.moved(numbers, (stop - column,))
        self.to.write(op.Slice(source=numbers, output=cut, axis=0, start=column, stop=stop, step=1))
        bits = self.draw(st.integers(2, 8))
        table = self.chance.integers(*(grid.ends if not bagged else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
                                     (max(counts[column:stop]), size), endpoint=True)  # fmt: skip
        name = self.to.value("looked", (size,) if bagged else (1, size), grid)
        held = self.to.constant(f"{name}.t", table)
        if bagged:
            by = self.requantiser(name, 1, float(1 << bits), grid)
            self.to.write(op.EmbeddingBag(source=cut, output=name, table=held, table_bits=bits, requantiser=by))
        else:
            self.to.write(op.Embedding(source=cut, output=name, table=held))
        looked = self.to.reshaped(name, (1, 1, size))
        result = self.grid()
        added = self.to.value("added", self.to.values[source].shape, result)
        low, high = result.ends
        by = op.Requantiser(multiplier=None, shift=8, zero_point=result.zero_point, low=low, high=high)
        factors = tuple(self.draw(st.integers(-300, 300)) for _ in range(2))
        return self.to.write(op.Add(sources=(source, looked), output=added, multipliers=factors, requantiser=by))

    def log_softmax(self, source: str, grid: Grid | None) -> str:
        """Of the last axis, on a grid or the finest one."""
        return write_log_softmax(self.to, FloatSoftmax(name="log", sources=(), log=True), source, grid)

    def head(self, source: str) -> str:
        """Everything as a row, perhaps averaged, moved or normalised before, and a layer of wide results."""
        shape = self.to.values[source].shape
        if self.draw(st.booleans()):
            order = tuple(self.draw(st.permutations(range(3))))
            moved = self.to.moved(source, [shape[axis] for axis in order])
            source = self.to.write(op.Permute(source=source, output=moved, order=order))
            shape = self.to.values[source].shape
        if self.draw(st.booleans()):
            grid = self.grid()
            axes = self.draw(st.sampled_from([(0,), (0, 1), (2,), (0, 2)]))
            name = self.to.value("mean", [1 if at in axes else size for at, size in enumerate(shape)], grid)
            by = self.requantiser(name, 1, 32.0, grid)
            source = self.to.write(op.Mean(source=source, output=name, axes=axes, requantiser=by))
        if self.draw(st.integers(0, 3)) == 0:
            source = self.log_softmax(source, self.grid())
        row = self.to.reshaped(source, [int(np.prod(self.to.values[source].shape))])
        inputs, outputs, bits = self.to.values[row].shape[0], self.draw(st.integers(1, 5)), self.draw(st.integers(2, 8))
        grid = Grid(bits=self.draw(st.sampled_from([4, 8, 16])), signed=True, scale=0.01, zero_point=0)
        name = self.to.value(OUTPUT, (outputs,), grid)
        weight = self.weights((outputs, inputs), bits)
        return self.to.write(
            op.Linear(
                source=row,
                output=name,
                weight=self.to.constant("w", weight),
                weight_bits=bits,
                bias=self.to.constant("b", self.chance.integers(-5000, 5000, outputs)),
                requantiser=self.requantiser(name, outputs, 16.0 * (1 << bits), grid),
            )
        )


@st.composite
def graphs(draw: st.DrawFn, *, every: bool = False) -> IntegerGraph:
    """Graphs of what all executions and engines have; of every operation, if asked."""
    maker = Maker(draw)
    shape = (draw(st.integers(1, 7)), draw(st.integers(1, 7)), draw(st.integers(1, 6)))
    source = maker.to.value("x", shape, maker.grid())
    blocks = {"convolution": maker.convolution, "pool": maker.pool, "residual": maker.residual}
    if every:
        blocks |= {"product": maker.product, "norm": maker.norm, "cut": maker.cut, "rows": maker.rows}
    for name in draw(st.lists(st.sampled_from([*blocks, "convolution"]), min_size=1, max_size=4)):
        source = blocks[name](source)
    out = maker.head(source)
    if maker.to.values[out].bits <= 8 and draw(st.booleans()):
        out = maker.log_softmax(out, None)
    port = ModelPort(name="x", value="x", dtype="float32", shape=(shape[2], *shape[:2]), order=(1, 2, 0))
    end = ModelPort(name="y", value=out, dtype="float32", shape=maker.to.values[out].shape, order=(0,))
    made = IntegerGraph(
        inputs=(port, *maker.ports),
        outputs=(end,),
        values=maker.to.values,
        operations=tuple(maker.to.operations),
        constants=maker.to.constants,
    )
    return checked(with_ranges(pruned(made)))


def numbers_for(graph: IntegerGraph, batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Whole numbers over the whole range of each input, its ends among them."""
    chance = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for port in graph.inputs:
        value = graph.value(port)
        highs = np.maximum(highs_of(value), 0) if value.highs else value.high
        array = chance.integers(value.low, highs, (batch, *value.shape), endpoint=True)
        array[0], array[-1] = value.low, highs
        found[port.value] = array.astype(np.int32)
    return found
