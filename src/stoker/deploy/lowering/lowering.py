"""Writes the integer graph of a graph on real numbers, operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stoker.core.errors import ModelImportError
from stoker.deploy.arithmetic.requantising import shift_of
from stoker.deploy.arithmetic.windows import window_counts
from stoker.deploy.floating import operations as fl
from stoker.deploy.floating.functions import apply
from stoker.deploy.floating.patches import WeightedLayer
from stoker.deploy.floating.row_numbers import rows_read
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.pruning import pruned
from stoker.deploy.ir.values import Dtype, ModelPort
from stoker.deploy.lowering.folding import folded, only_leaves
from stoker.deploy.lowering.grids import Grid, RangeRule, Widths, grid_of, observed_grid
from stoker.deploy.lowering.layout import BATCH, Atom, Group, Laid, permuted, reshaped, size_of, without_batch
from stoker.deploy.lowering.lookups import write_lookup, write_running_sum
from stoker.deploy.lowering.naming import WidthNames
from stoker.deploy.lowering.normalising import write_log_softmax, write_norm, write_softmax
from stoker.deploy.lowering.observation import Observed
from stoker.deploy.lowering.rounding import RoundedWeights, RoundingRule, round_weights
from stoker.deploy.lowering.roundings import Roundings
from stoker.deploy.lowering.tables import table_ends, table_grid, with_tables, write_bag, write_rows
from stoker.deploy.lowering.writing import Writer, fresh, with_channels

_CLAMPED = (
    fl.FloatLinear,
    fl.FloatConvolution,
    fl.FloatScale,
    fl.FloatSum,
    fl.FloatProduct,
    fl.FloatMatMul,
    fl.FloatNorm,
)
"""Operations that a rectifier after them becomes part of."""
_FACTOR_BITS = 15
"""Bits of the multipliers of sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringOptions:
    """How numbers become whole.

    Attributes:
        widths: of weights and results.
        rule: of ranges.
        corrected: whether biases make up for the mean error of rounded weights.
        shifts: whether requantisers of layers only shift: ratios are absorbed into the weights' scales.
        rounding: of weights: compensated, for the least error of results, or to nearest.
    """

    widths: Widths = field(default_factory=Widths)
    rule: RangeRule = "minmax"
    corrected: bool = True
    shifts: bool = False
    rounding: RoundingRule = "compensated"


@dataclass(frozen=True, slots=True)
class Lowered:
    """What came of it.

    Attributes:
        graph: checked.
        values: the graph's value of each operation on real numbers that has one, by name.
        weight_bits: bits of all weights of a layer, by name.
        named: what widths may be given to.
        joined: rectifiers that are part of a layer, by the layer's name; the layer's result is theirs.
    """

    graph: IntegerGraph
    values: Mapping[str, Laid]
    weight_bits: Mapping[str, int]
    named: WidthNames
    joined: Mapping[str, fl.FloatPointwise]


def lower(
    graph: fl.FloatGraph, seen: Mapping[str, Observed], options: LoweringOptions | None = None,
    roundings: Roundings | None = None,
) -> Lowered:  # fmt: skip
    """The integer graph.

    Args:
        graph: on real numbers.
        seen: of each result and each real input, by name.
        options: how numbers become whole.
        roundings: of weights of this graph in earlier designs, which are not made again.

    Raises:
        ModelImportError: shapes or numbers that integers can't do; fields: where.
    """
    return _Lowering(folded(graph), seen, options or LoweringOptions(), roundings or Roundings()).lowered()


class _Lowering:
    def __init__(
        self, graph: fl.FloatGraph, seen: Mapping[str, Observed], options: LoweringOptions, roundings: Roundings
    ) -> None:
        self._graph, self._seen, self._options, self._roundings = graph, seen, options, roundings
        self._to = Writer()
        self._rows_read, self._table_ends = rows_read(graph), table_ends(graph)
        self._laid: dict[str, Laid] = {}
        self._weight_bits: dict[str, int] = {}
        self._uses = Counter([name for each in graph.operations for name in each.sources] + [*graph.outputs.values()])
        self._readers = {name: each for each in graph.operations for name in each.sources}
        """The last reader of each value."""
        self._joined: dict[str, fl.FloatPointwise] = {}
        """Rectifiers that are part of the operation before them, by that operation's name."""
        self._named_weights: set[str] = set()
        self._named_results: set[str] = set()
        """Names and paths that widths were looked up by."""

    def lowered(self) -> Lowered:
        ports = tuple(self._input(each) for each in self._graph.inputs)
        for each in self._graph.operations:
            after = self._readers.get(each.name)
            if (
                isinstance(each, _CLAMPED) and isinstance(after, fl.FloatPointwise)
                and after.function == "clamp" and self._uses[each.name] == 1 and each.name not in self._graph.grids
            ):  # fmt: skip
                self._joined[each.name] = after
        for each in self._graph.operations:
            try:
                self._operation(each)
                self._on_given_grid(each)
            except ValueError as error:
                raise self._refused(each, str(error)) from error
        outputs = tuple(self._output(name, value) for name, value in self._graph.outputs.items())
        to = self._to
        made = IntegerGraph(
            inputs=ports, outputs=outputs, values=to.values, operations=tuple(to.operations), constants=to.constants
        )
        own = {name: laid for name, laid in self._laid.items() if name not in self._joined}
        named = WidthNames(frozenset(self._named_weights - {""}), frozenset(self._named_results - {""}))
        return Lowered(checked(with_ranges(pruned(made))), own, self._weight_bits, named, self._joined)

    def _refused(self, each: fl.FloatOperation, rule: str) -> ModelImportError:
        at = f"{each.where}: " if each.where else ""
        kind = type(each).__name__.removeprefix("Float")
        return ModelImportError(f"{at}`{each.name}` ({kind}) in `{each.layer}`: {rule}", where=each.where)

    def _input(self, each: fl.FloatInput) -> ModelPort:
        """An input, images with channels last."""
        sizes = each.shape[1:]
        images = any(
            each.name in operation.sources and isinstance(operation, (fl.FloatConvolution, fl.FloatPool, fl.FloatScale))
            for operation in self._graph.operations
        )
        order = (*range(1, len(sizes)), 0) if images and len(sizes) > 1 else tuple(range(len(sizes)))
        atoms = [(Atom(size),) if size > 1 else () for size in sizes]
        if each.whole:
            read = self._rows_read[each.name]
            grid = Grid(bits=read.bits, signed=False, scale=1.0, zero_point=0)
            value = self._to.row_numbers(each.name, read.rows.transpose(order) - 1, grid, joined=read.joined)
        else:
            value = self._to.value(each.name, [sizes[axis] for axis in order], self._grid(each.name, ""))
        self._laid[each.name] = Laid(value, ((BATCH,), *atoms), tuple(atom for axis in order for atom in atoms[axis]))
        dtype: Dtype = "bool" if each.truth else "int64" if each.whole else "float32"
        return ModelPort(name=each.name, value=value, dtype=dtype, shape=sizes, order=order)

    def _output(self, name: str, value: str) -> ModelPort:
        laid = self._laid[value]
        if not laid.axes or laid.axes[0] != (BATCH,):
            raise ModelImportError(f"output `{name}` must have the batch as its first axis", where="")
        order = laid.axes_in_memory()
        arranged = self._to.arranged(laid, [laid.axes[axis] for axis in order])
        return ModelPort(
            name=name, value=arranged, dtype="float32", shape=tuple(size_of(group) for group in laid.axes[1:]),
            order=tuple(axis - 1 for axis in order),
        )  # fmt: skip

    def _grid(self, name: str, layer: str) -> Grid:
        """The grid of a result: the graph's own, or one of what was observed."""
        return self._chosen_grid(name, self._result_bits(name, layer))

    def _result_bits(self, name: str, layer: str) -> int:
        self._named_results |= {name, layer}
        return self._options.widths.of_result(name, layer)

    def _bits_of_weights(self, name: str, layer: str) -> int:
        self._named_weights |= {name, layer}
        return self._options.widths.of_weights(name, layer)

    def _chosen_grid(self, name: str, bits: int) -> Grid:
        given = self._graph.grids.get(name)
        if given is not None:
            return Grid(bits=given.bits, signed=given.signed, scale=given.scale, zero_point=given.zero_point)
        if name not in self._seen:
            raise ValueError("must compute with real numbers, and was given whole ones")
        return observed_grid(self._seen[name], bits, self._options.rule)

    def _on_given_grid(self, each: fl.FloatOperation) -> None:
        """Puts a result on the graph's own grid, where the operation left it on its source's."""
        laid = self._laid[each.name]
        if each.name in self._graph.grids:
            self._laid[each.name] = replace(laid, value=self._to.rescaled(laid.value, self._grid(each.name, "")))

    def _result(self, each: fl.FloatOperation) -> tuple[Grid, tuple[int, int] | None]:
        """The grid of an operation's result, and the ends of the rectifier that is part of it."""
        joined = self._joined.get(each.name)
        if joined is None:
            return self._grid(each.name, each.layer), None
        bits, own = self._result_bits(each.name, each.layer), self._result_bits(joined.name, joined.layer)
        grid = self._chosen_grid(
            joined.name, own if self._options.widths.has_result(joined.name, joined.layer) else bits
        )
        low, high = (float(end) for end in grid.steps(np.clip(np.array(joined.arguments), -1e30, 1e30)))
        return grid, (int(low), int(high))

    def _operation(self, each: fl.FloatOperation) -> None:
        match each:
            case fl.FloatLinear():
                self._linear(each)
            case fl.FloatConvolution():
                self._convolution(each)
            case fl.FloatScale():
                self._scale(each)
            case fl.FloatPool():
                self._pool(each)
            case fl.FloatPointwise():
                self._pointwise(each)
            case fl.FloatSum() | fl.FloatProduct():
                self._elementwise(each)
            case fl.FloatMatMul():
                self._matmul(each)
            case fl.FloatConcat():
                self._concat(each)
            case fl.FloatReshape():
                self._reshape(each)
            case fl.FloatPermute():
                self._laid[each.name] = permuted(self._laid[each.sources[0]], each.order)
            case fl.FloatSlice():
                self._slice(each)
            case fl.FloatMean():
                self._mean(each)
            case fl.FloatEmbedding():
                self._embedding(each)
            case fl.FloatLookup():
                self._lookup(each)
            case fl.FloatRunningSum():
                self._running_sum(each)
            case fl.FloatNorm():
                self._norm(each)
            case fl.FloatSoftmax():
                self._softmax(each)
            case fl.FloatConstant():
                self._constant(each)

    def _rows(self, laid: Laid) -> tuple[str, tuple[Group, ...], tuple[Group, ...]]:
        """A value with the last axis last in memory, and the axes before it: as they lie, and as torch has them."""
        last = laid.axes[-1]
        if BATCH in last:
            raise ValueError("the last axis must not hold the batch")
        rows = laid.rows(-1)
        groups = ((rows,) if rows else ()) + (last,)
        return self._to.arranged(laid, groups), (rows,), laid.axes[:-1]

    def _linear(self, each: fl.FloatLinear) -> None:
        laid = self._laid[each.sources[0]]
        last = laid.axes[-1]
        tail = laid.order[len(laid.order) - len(last) :]
        moved = tail != last and set(tail) == set(last)
        if moved:
            laid = replace(laid, axes=(*laid.axes[:-1], tail))
        source, rows, before = self._rows(laid)
        grid, ends = self._result(each)
        made, bits = self._rounded(each, each.weight, each.bias, source, grid)
        weight, out = made.weight, Atom(len(each.weight))
        if moved:
            # The numbers lie in another order than torch's, channels last: the columns are put into theirs.
            sizes, places = [atom.size for atom in last], [last.index(atom) + 1 for atom in tail]
            weight = weight.reshape(out.size, *sizes).transpose(0, *places).reshape(out.size, -1)
        name = self._to.value(each.name, (*self._to.values[source].shape[:-1], out.size), grid)
        self._to.write(
            op.Linear(
                source=source, output=name, weight=self._to.constant(f"{name}.weight", weight), weight_bits=bits,
                bias=self._to.constant(f"{name}.bias", made.bias),
                requantiser=self._by_channel(name, made, source, grid, ends),
            )
        )  # fmt: skip
        self._laid[each.name] = with_channels(name, before, rows[0], out)

    def _rounded(
        self, each: WeightedLayer, weight: Any, bias: Any, source: str, grid: Grid
    ) -> tuple[RoundedWeights, int]:
        """A layer's weights, with their axes in torch's order, as whole numbers of so many bits."""
        options, own = self._options, self._to.grid(source)
        bits = self._bits_of_weights(each.name, each.layer)
        seen = self._seen.get(each.sources[0])
        patches = None if seen is None else seen.patches.get(each.name)
        corrected = options.corrected and patches is not None
        means = patches.mean if patches is not None and corrected else None
        by = self._roundings.of(each.name, options.rounding, patches, centred=corrected)
        steps = None if isinstance(each, fl.FloatScale) else each.given
        if steps is not None:  # multiples of given steps: the nearest ones are they themselves
            bits, least = steps.bits, -(1 << (steps.bits - 1))
            made = round_weights(weight, bias, own, bits, means=means, given=steps.scales, least=least)
        else:
            made = round_weights(weight, bias, own, bits, means=means, by=by)
        if options.shifts and steps is None:
            ratios = made.scales * own.scale / grid.scale
            shift = _common_shift(ratios)
            scales = np.full(len(weight), 2.0**-shift * grid.scale / own.scale)
            made = round_weights(weight, bias, own, bits, means=means, given=scales, by=by)
        self._weight_bits[each.name] = bits * weight.size
        return made, bits

    def _by_channel(
        self, name: str, made: RoundedWeights, source: str, grid: Grid, ends: tuple[int, int] | None
    ) -> op.Requantiser:
        ratios = made.scales * self._to.values[source].scale / grid.scale
        if self._options.shifts:
            # The scales were chosen so; a bias that is far larger than its weights may have raised one of them.
            shift = round(-np.log2(ratios[0]))
            if shift >= 0 and np.allclose(ratios * 2.0**shift, 1, rtol=1e-9, atol=0):
                low, high = ends or grid.ends
                return op.Requantiser(multiplier=None, shift=shift, zero_point=grid.zero_point, low=low, high=high)
        return self._to.requantiser(name, ratios, grid, ends)

    def _image(self, laid: Laid, flat: bool) -> str:
        """A value as (height, width, channels)."""
        if laid.axes[0] != (BATCH,):
            raise ValueError("the first axis must be the batch alone; apply it before `reshape(-1, …)` joins others")
        channels, *places = laid.axes[1:]
        rows: Group = () if flat or not places else places[0]
        columns: Group = () if not places else places[-1]
        return self._to.arranged(laid, [rows, columns, channels])

    def _imaged(self, name: str, flat: bool) -> Laid:
        """The tensor of a value of (height, width, channels)."""
        height, width, channels = ((Atom(size),) if size > 1 else () for size in self._to.values[name].shape)
        axes = ((BATCH,), channels, width) if flat else ((BATCH,), channels, height, width)
        return Laid(name, axes, (*height, *width, *channels))

    def _convolution(self, each: fl.FloatConvolution) -> None:
        source = self._image(self._laid[each.sources[0]], each.flat)
        self._convolved(each, source, each.weight, each.bias, each.flat, {
            "stride": each.stride, "padding": each.padding, "dilation": each.dilation, "groups": each.groups,
        })  # fmt: skip

    def _convolved(
        self, each: fl.FloatConvolution | fl.FloatScale, source: str, weight: Any, bias: Any, flat: bool,
        geometry: dict[str, Any],
    ) -> None:  # fmt: skip
        grid, ends = self._result(each)
        made, bits = self._rounded(each, weight, bias, source, grid)
        shape = self._to.values[source].shape
        name = self._to.value(each.name, (1, 1, len(weight)), grid)
        operation = op.Convolution(
            source=source, output=name,
            weight=self._to.constant(f"{name}.weight", made.weight.transpose(0, 2, 3, 1)), weight_bits=bits,
            bias=self._to.constant(f"{name}.bias", made.bias),
            requantiser=self._by_channel(name, made, source, grid, ends), **geometry,
        )  # fmt: skip
        assert len(shape) == 3
        self._to.write_shaped(operation)
        self._laid[each.name] = self._imaged(name, flat)
        if isinstance(each, fl.FloatScale) and len(self._graph.shapes[each.name]) == 2:
            self._laid[each.name] = replace(self._laid[each.name], axes=self._laid[each.name].axes[:2])

    def _scale(self, each: fl.FloatScale) -> None:
        """A batch norm on its own: a depthwise convolution of one weight a channel."""
        laid = self._laid[each.sources[0]]
        flat, groups = len(laid.axes) < 4, {"groups": len(each.factor)}
        rows = without_batch(laid.axes[0]) if len(laid.axes) == 2 else ()  # of a sample, as `reshape(-1, …)` joins them
        source = self._to.arranged(laid, [(), rows, laid.axes[1]]) if rows else self._image(laid, flat)
        self._convolved(each, source, each.factor.reshape(-1, 1, 1, 1), each.offset, flat, groups)
        made = self._laid[each.name]
        self._laid[each.name] = Laid(made.value, laid.axes, (*rows, *laid.axes[1])) if rows else made

    def _pool(self, each: fl.FloatPool) -> None:
        source = self._image(self._laid[each.sources[0]], each.flat)
        value, grid = self._to.values[source], self._to.grid(source)
        geometry: dict[str, Any] = {"kernel": each.kernel, "stride": each.stride, "padding": each.padding}
        if each.kind == "max":
            name = self._to.value(each.name, value.shape, grid)
            self._to.write_shaped(op.MaxPool(source=source, output=name, dilation=each.dilation, **geometry))
        else:
            wanted, _ = self._result(each)
            name = self._to.value(each.name, value.shape, wanted)
            size = value.shape[0], value.shape[1]
            counts = window_counts(size, each.kernel, each.stride, each.padding, each.counted)
            ratios = np.atleast_1d(grid.scale / wanted.scale / counts)
            by = self._to.requantiser(name, ratios, wanted)
            self._to.write_shaped(op.SumPool(source=source, output=name, requantiser=by, **geometry))
        self._laid[each.name] = self._imaged(name, each.flat)

    def _pointwise(self, each: fl.FloatPointwise) -> None:
        source = each.sources[0]
        laid = self._laid[source]
        if source in self._joined:
            self._laid[each.name] = laid
            return
        own = self._to.grid(laid.value)
        if each.function == "linear" and each.arguments[0] > 0 and each.arguments[1] == 0:
            name = self._to.moved(laid.value, self._to.values[laid.value].shape, scale=own.scale * each.arguments[0])
            self._to.write(op.Reshape(source=laid.value, output=name))
        else:
            grid = self._grid(each.name, each.layer)
            least, most = own.ends
            numbers = np.arange(least - own.zero_point, most - own.zero_point + 1, dtype=np.float64) * own.scale
            table = grid.steps(apply(each.function, numbers, each.arguments))
            name = self._to.value(each.name, self._to.values[laid.value].shape, grid)
            self._to.write(op.Table(source=laid.value, output=name, table=self._to.constant(f"{name}.table", table)))
        self._laid[each.name] = replace(laid, value=name)

    def _alike(self, sources: list[Laid]) -> tuple[list[str], tuple[int, ...]]:
        """Values with the same axes in the same order of memory, and that order."""
        first = max(sources, key=lambda laid: (self._to.is_computed(laid.value), len(laid.order)))
        order = first.axes_in_memory()
        return [self._to.arranged(laid, [laid.axes[axis] for axis in order]) for laid in sources], order

    def _elementwise(self, each: fl.FloatSum | fl.FloatProduct) -> None:
        laid = [self._laid[name] for name in each.sources]
        sources, order = self._alike(laid)
        grid, ends = self._result(each)
        shapes = [self._to.values[name].shape for name in sources]
        name = self._to.value(each.name, np.broadcast_shapes(*shapes), grid)
        scales = [self._to.values[source].scale for source in sources]
        if isinstance(each, fl.FloatProduct):
            by = self._to.requantiser(name, np.array([scales[0] * scales[1] / grid.scale]), grid, ends)
            self._to.write(op.Multiply(sources=(sources[0], sources[1]), output=name, requantiser=by))
        else:
            ratios = [factor * scale / grid.scale for factor, scale in zip(each.factors, scales, strict=True)]
            shift = shift_of(max(abs(ratio) for ratio in ratios), _FACTOR_BITS)
            low, high = ends or grid.ends
            by = op.Requantiser(multiplier=None, shift=shift, zero_point=grid.zero_point, low=low, high=high)
            factors = tuple(round(ratio * 2.0**shift) for ratio in ratios)
            self._to.write(op.Add(sources=tuple(sources), output=name, multipliers=factors, requantiser=by))
        self._laid[each.name] = self._spread(name, each.name, order)

    def _spread(self, value: str, name: str, order: tuple[int, ...]) -> Laid:
        """A value whose axes are a tensor's axes in an order."""
        shape = self._graph.shapes[name]
        axes: list[Group] = [((BATCH,) if size < 0 else ()) for size in shape]
        atoms: list[Atom] = []
        for axis, size in zip(order, self._to.values[value].shape, strict=True):
            if size > 1:
                atom = Atom(size)
                axes[axis] = (*axes[axis], atom)
                atoms.append(atom)
        return Laid(value, tuple(axes), tuple(atoms))

    def _matmul(self, each: fl.FloatMatMul) -> None:
        first, second = (self._laid[name] for name in each.sources)
        outer = list(zip(first.axes[:-2], second.axes[:-2], strict=True))
        stacked = [pair for pair in outer if pair != ((BATCH,), (BATCH,))]
        groups = [[without_batch(pair[at]) for pair in stacked] for at in (0, 1)]
        left = self._to.arranged(first, [*groups[0], *first.axes[-2:]])
        inner, columns = second.axes[-2:]
        wanted = tuple(atom for group in (*groups[1], columns, inner) for atom in group)
        transposed = wanted == second.order
        ends_of = (columns, inner) if transposed else (inner, columns)
        right = self._to.arranged(second, [*groups[1], *ends_of])
        grid, ends = self._result(each)
        scales = [self._to.values[name].scale for name in (left, right)]
        shapes = [self._to.values[name].shape for name in (left, right)]
        stack = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        name = self._to.value(each.name, (*stack, shapes[0][-2], size_of(columns)), grid)
        ratio = np.array([each.factor * scales[0] * scales[1] / grid.scale])
        by = self._to.requantiser(name, ratio, grid, ends)
        self._to.write(op.MatMul(sources=(left, right), output=name, transposed=transposed, requantiser=by))
        axes = fresh([*(pair[0] or pair[1] for pair in outer), first.axes[-2], columns])
        self._laid[each.name] = Laid(name, axes, tuple(atom for group in axes for atom in without_batch(group)))

    def _concat(self, each: fl.FloatConcat) -> None:
        sources, order = self._alike([self._laid[name] for name in each.sources])
        same = {self._to.grid(source) for source in sources}
        grid = same.pop() if len(same) == 1 else self._joined_grid(each)
        parts = [self._to.rescaled(source, grid) for source in sources]
        axis = order.index(each.axis)
        shape = list(self._to.values[parts[0]].shape)
        shape[axis] = sum(self._to.values[part].shape[axis] for part in parts)
        name = self._to.value(each.name, shape, grid)
        self._to.write(op.Concat(sources=tuple(parts), output=name, axis=axis))
        self._laid[each.name] = self._spread(name, each.name, order)

    def _joined_grid(self, each: fl.FloatConcat) -> Grid:
        """The grid of values that are joined, which holds all rows of the tables among them."""
        seen = self._seen.get(each.name)
        if seen is None or each.name in self._graph.grids:
            return self._grid(each.name, each.layer)
        seen = with_tables(seen, each.sources, self._table_ends)
        return observed_grid(seen, self._result_bits(each.name, each.layer), self._options.rule)

    def _reshape(self, each: fl.FloatReshape) -> None:
        laid = self._laid[each.sources[0]]
        found = reshaped(laid, each.shape)
        if found is None:
            if laid.axes[0] != (BATCH,):
                raise ValueError(f"a reshape must keep the batch apart, got {each.shape}")
            every = tuple(atom for group in laid.axes[1:] for atom in group)
            name = self._to.arranged(laid, [every])
            atom = Atom(size_of(every))
            found = reshaped(Laid(name, ((BATCH,), (atom,)), (atom,)), each.shape)
            if found is None:
                raise ValueError(f"a reshape must keep the batch apart, got {each.shape}")
        self._laid[each.name] = found

    def _slice(self, each: fl.FloatSlice) -> None:
        laid = self._laid[each.sources[0]]
        order = laid.axes_in_memory()
        source = self._to.arranged(laid, [laid.axes[axis] for axis in order])
        axis, shape = order.index(each.axis), list(self._to.values[source].shape)
        shape[axis] = len(range(each.start, each.stop, each.step))
        name = self._to.moved(source, shape)
        cut = op.Slice(source=source, output=name, axis=axis, start=each.start, stop=each.stop, step=each.step)
        self._to.write(cut)
        self._laid[each.name] = self._spread(name, each.name, order)

    def _mean(self, each: fl.FloatMean) -> None:
        laid = self._laid[each.sources[0]]
        order = laid.axes_in_memory()
        source = self._to.arranged(laid, [laid.axes[axis] for axis in order])
        axes = tuple(at for at, axis in enumerate(order) if axis in each.axes)
        shape = self._to.values[source].shape
        count = np.prod([shape[at] for at in axes]) if each.divided else 1
        grid, _ = self._result(each)
        name = self._to.value(each.name, [1 if at in axes else size for at, size in enumerate(shape)], grid)
        by = self._to.requantiser(name, np.array([self._to.values[source].scale / grid.scale / count]), grid)
        self._to.write(op.Mean(source=source, output=name, axes=axes, requantiser=by))
        self._laid[each.name] = self._spread(name, each.name, order)

    def _embedding(self, each: fl.FloatEmbedding) -> None:
        laid, out = self._laid[each.sources[0]], Atom(each.table.shape[1])
        bits = self._bits_of_weights(each.name, each.layer)
        if each.bag:
            source, rows, before = self._rows(laid)
            name = write_bag(self._to, each, source, laid, bits, self._grid(each.name, each.layer))
            self._laid[each.name] = with_channels(name, before, rows[0], out)
        else:
            # Rows are results as they are: they have the narrower of both widths.
            bits = min(bits, self._result_bits(each.name, each.layer))
            given = each.name in self._graph.grids
            grid = self._grid(each.name, "") if given else table_grid(each.table, bits, self._options.rule)
            bits = grid.bits
            name = write_rows(self._to, each, self._to.arranged(laid, [laid.order]), grid)
            self._laid[each.name] = with_channels(name, laid.axes, laid.order, out)
        self._weight_bits[each.name] = bits * each.table.size

    def _lookup(self, each: fl.FloatLookup) -> None:
        sources, order = self._alike([self._laid[name] for name in each.sources])
        name = write_lookup(self._to, each, sources, self._grid(each.name, each.layer))
        self._laid[each.name] = self._spread(name, each.name, order)

    def _running_sum(self, each: fl.FloatRunningSum) -> None:
        source, rows, before = self._rows(self._laid[each.sources[0]])
        name = write_running_sum(self._to, each, source, self._grid(each.name, each.layer))
        self._laid[each.name] = with_channels(name, before, rows[0], Atom(self._to.values[name].shape[-1]))

    def _norm(self, each: fl.FloatNorm) -> None:
        laid = self._laid[each.sources[0]]
        source, rows, before = self._rows(laid)
        grid, ends = self._result(each)
        name = write_norm(self._to, each, source, grid, ends)
        self._laid[each.name] = with_channels(name, before, rows[0], Atom(len(each.gain)))

    def _softmax(self, each: fl.FloatSoftmax) -> None:
        laid = self._laid[each.sources[0]]
        own = [group for group in laid.axes if group != (BATCH,)]
        source = self._to.arranged(laid, own)
        if each.log:
            leaves = each.name not in self._graph.grids and only_leaves(self._graph, each.name)
            name = write_log_softmax(self._to, each, source, None if leaves else self._grid(each.name, each.layer))
        else:
            counts = None
            if len(each.sources) > 1:
                mask = self._laid[each.sources[1]]
                pairs = zip(laid.axes, mask.axes, strict=True)
                counts = self._to.arranged(mask, [group for own, group in pairs if own != (BATCH,)])
            name = write_softmax(self._to, each, source, self._result_bits(each.name, each.layer), counts)
        axes = fresh(laid.axes)
        self._laid[each.name] = Laid(name, axes, tuple(atom for group in axes for atom in without_batch(group)))

    def _constant(self, each: fl.FloatConstant) -> None:
        bits = self._result_bits(each.name, each.layer)
        grid = grid_of(float(each.array.min()), float(each.array.max()), bits)
        if each.name in self._graph.grids:
            grid = self._chosen_grid(each.name, bits)
        shape = each.array.shape
        name = self._to.fixed(each.name, grid.steps(each.array).astype(np.int64), grid)
        atoms = [(Atom(size),) if size > 1 else () for size in shape]
        self._laid[each.name] = Laid(name, tuple(atoms), tuple(atom for group in atoms for atom in group))


def _common_shift(ratios: Any) -> int:
    """The shift whose power of two is at least every ratio: scales only grow, so no weight is cut."""
    return int(np.floor(-np.log2(ratios.max())))
