"""From an integer graph to the structure of a design: a unit for each operation, streams of fitting words between them.

What has no unit is refused by name. A reshape costs nothing: streams keep the order of the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.banks import with_banks
from stoker.deploy.rtl.constant_sums import ConstantSums, constant_sums
from stoker.deploy.rtl.depth import full_speed_depths, least_depths
from stoker.deploy.rtl.flow import Flow, JoinedFlow, ResizedFlow, RowFlow, ThroughFlow
from stoker.deploy.rtl.folding import Folding, LayerWork, divisors, works_of
from stoker.deploy.rtl.geometry import ON_ENGINE, Windows, windows_of
from stoker.deploy.rtl.memories import (
    WIDEST_COMPARED,
    Requantised,
    by_channel,
    comparable,
    law_of,
    packed,
    threshold_memories,
    weight_words,
)
from stoker.deploy.rtl.structure import (
    EMPTY,
    ConstantLayer,
    DesignNode,
    End,
    MemoryFile,
    Parameter,
    Structure,
    WordStream,
)
from stoker.deploy.rtl.timing import law_cycles

REQUANTISER_MULTIPLIERS = 2
"""A lane's: an accumulator of more than 18 bits and a factor of 16 need two multipliers of 18 x 18."""
_SHIFT_CYCLES = 2
"""Cycles that a requantiser takes more whose shift is a number in a memory."""
_WINDOW_CYCLES = 4
_TURN_CYCLES = 4
"""From a word that leaves an output FIFO to the work that its place allows, and the way in and out of the FIFO."""
SHALLOW = 32
"""Words of a FIFO in distributed memory; a deeper one takes a cycle more (``fifo.sv``)."""
WIDEST_TABLE = 12
"""Bits of a number whose table still is a small memory."""


def lower(
    graph: IntegerGraph, foldings: Mapping[str, Folding], *, fifos: Literal["full", "least"] = "full",
    updatable: bool = False, constant: Collection[str] = (), sums: Mapping[str, ConstantSums] | None = None,
    filled: bool = True, thresholds: Collection[str] = (),
) -> Structure:  # fmt: skip
    """The structure of a design.

    Args:
        graph: sound, as ``checked`` says.
        foldings: of dense layers and convolutions, by the name of their result.
        fifos: depths with which no branch holds another back, or the least with which none stops.
        updatable: whether another model's numbers can be brought into it while it runs.
        constant: layers whose weights are part of the circuit; their foldings span whole windows.
        sums: additions of such layers where they are known (:func:`layer_sums`); others are made.
        filled: whether memories of weights and tables are filled; without, it can be counted, not written.
        thresholds: layers of :func:`comparable` whose results are found by comparisons, without multipliers.

    Raises:
        ValueError: an operation has no unit, or a folding does not divide its layer.
    """
    if updatable and constant:
        raise ValueError(
            f"an updatable design must have its weights in memories, got {', '.join(sorted(constant))} in the circuit; "
            "search with `--weights memories`, or leave out `--constant` or `--updatable`"
        )
    if updatable and thresholds:
        raise ValueError(
            "an updatable design must have requantisers that multiply or shift, got thresholds of "
            f"{', '.join(sorted(thresholds))}; search with `--requantisers multipliers`, or leave out `--thresholds` "
            "or `--updatable`"
        )
    if others := sorted({*thresholds} - {*comparable(graph)}):
        raise ValueError(
            f"`thresholds` must name layers that multiply to scale results of at most {WIDEST_COMPARED} bits, here "
            f"{', '.join(comparable(graph)) or 'none'}, got {', '.join(others)}; leave it out of `--thresholds`"
        )
    works = works_of(graph)
    cycles = max((work.cycles(foldings[name]) for name, work in works.items()), default=1)
    building = _Building(
        graph, works, foldings, cycles, frozenset(constant), sums or {}, filled, updatable,
        frozenset(thresholds),
    )  # fmt: skip
    first = _first_lanes(graph, works, foldings)
    for port in graph.inputs:
        value = graph.value(port)
        lanes = first.get(port.value) or _even_lanes(value.elements, value.shape[-1] if value.shape else 1, cycles)
        building.put(port.value, "", (), lanes, ThroughFlow(0, 0), 0, layer=port.value)
    for operation in graph.operations:
        building.add(operation)
    ends = [
        tuple(End(port=port.name, value=port.value, stream=building.streams[port.value]) for port in ports)
        for ports in (graph.inputs, graph.outputs)
    ]
    structure = Structure(nodes=building.nodes, inputs=ends[0], outputs=ends[1])
    if updatable:
        structure = with_banks(structure)
    if fifos == "full":
        return structure.with_fifos(full_speed_depths(structure))
    least = least_depths(structure)
    return replace(structure.with_fifos(least), full_speed=least == full_speed_depths(structure))


def _first_lanes(
    graph: IntegerGraph, works: Mapping[str, LayerWork], foldings: Mapping[str, Folding]
) -> dict[str, int]:
    """Lanes of inputs: those of the first array that reads them; indices come one by one."""
    found: dict[str, int] = {}
    for operation in graph.operations:
        if isinstance(operation, (op.Embedding, op.EmbeddingBag)):
            found.setdefault(operation.source, 1)
        if operation.output in works:
            for source in op.sources_of(operation):
                found.setdefault(source, foldings[operation.output].lanes)
    return found


def _even_lanes(elements: int, channels: int, cycles: int) -> int:
    """The fewest lanes with which so many numbers pass in so many cycles; all channels where none are enough."""
    return next((lanes for lanes in divisors(channels) if elements // lanes <= cycles), channels)


@dataclass
class _Building:
    """Nodes so far. ``cycles`` are those of the slowest array, which nothing else should exceed."""

    graph: IntegerGraph
    works: Mapping[str, LayerWork]
    foldings: Mapping[str, Folding]
    cycles: int
    constant: Collection[str] = ()
    sums: Mapping[str, ConstantSums] = field(default_factory=dict[str, ConstantSums])
    filled: bool = True
    updatable: bool = False
    thresholds: Collection[str] = ()
    nodes: dict[str, DesignNode] = field(default_factory=dict[str, DesignNode])
    streams: dict[str, str] = field(default_factory=dict[str, str])
    """The node that carries a value."""

    def add(self, operation: op.Operation) -> None:
        """Adds an operation's unit."""
        match operation:
            case op.Linear() | op.Convolution() if operation.output in self.constant:
                self._constant(operation)
            case op.Linear() | op.Convolution():
                self._matrix(operation)
            case op.MaxPool() | op.SumPool() | op.Mean():
                self._pool(operation)
            case op.Add() | op.Rescale():
                self._sum(operation)
            case op.Table():
                self._table(operation)
            case op.Embedding() | op.EmbeddingBag():
                self._lookup(operation)
            case op.Concat():
                self._concat(operation)
            case op.Reshape():
                self.streams[operation.output] = self.streams[operation.source]
            case _:
                kind = type(operation).__name__
                without = "" if kind != "Softmax" else "; scores without it have the same order, if it is the last"
                raise ValueError(
                    f"`{operation.output}` must be of a kind that a dataflow design has a unit for, got {kind}; "
                    f"{ON_ENGINE}{without}"
                )

    def put(
        self, value: str, module: str, sources: tuple[str, ...], lanes: int, flow: Flow, cycles: int, *,
        parameters: Mapping[str, Parameter] | None = None, memories: Mapping[str, MemoryFile] | None = None,
        multipliers: int = 0, layer: str, constant: ConstantLayer | None = None,
    ) -> None:  # fmt: skip
        """Adds the node that carries a value."""
        name = f"u{len(self.nodes)}_{_word(value)}"
        made = self.graph.values[value]
        memories = dict(memories or {})
        stream = WordStream(name=name, lanes=lanes, bits=made.bits, signed=made.signed, words=made.elements // lanes)
        names = {kind.upper(): f"{name}_{kind}.hex" for kind in memories}
        if value in self.thresholds:
            names["FACTORS"] = f"{name}_thresholds"
            memories |= threshold_memories(self.graph, value, lanes) if self.filled else {"thresholds": EMPTY}
        files = {f"{name}_{kind}.hex": memory for kind, memory in memories.items()}
        self.nodes[name] = DesignNode(
            stream=stream, module=module, sources=sources, flow=flow, cycles=cycles, layer=layer,
            parameters={**(parameters or {}), **names}, memories=files, multipliers=multipliers, constant=constant,
        )  # fmt: skip
        self.streams[value] = name

    def _law(self, operation: Requantised | op.Add, lanes: int) -> tuple[dict[str, int], dict[str, MemoryFile]]:
        return law_of(self.graph, operation, lanes, compared=operation.output in self.thresholds)

    def _source(self, value: str, lanes: int) -> str:
        """A stream of a value with so many lanes, resized where it has others."""
        name = self.streams[value]
        for before, after in resize_steps(self.nodes[name].stream.lanes, lanes):
            stream = self.nodes[name].stream
            resized = replace(
                stream, name=f"u{len(self.nodes)}_x{after}", lanes=after, words=stream.words * before // after
            )
            self.nodes[resized.name] = DesignNode(
                stream=resized, module="resize_stream", sources=(name,), flow=ResizedFlow(before, after),
                cycles=max(stream.words, resized.words),
                parameters={"W": stream.bits, "IN_LANES": before, "OUT_LANES": after},
            )  # fmt: skip
            name = resized.name
        return name

    def _matrix(self, operation: op.Linear | op.Convolution) -> None:
        graph, work, folding = self.graph, self.works[operation.output], self.foldings[operation.output]
        if folding not in work.foldings():
            raise ValueError(
                f"`{operation.output}`: its folding must divide its channels and taps, got {folding}; "
                f"it has {work.outputs} results of {work.windows.taps} taps x {work.windows.channels} channels"
            )
        acc_bits = accumulator(operation, graph.values, graph.constants).bits
        parameters, factors = matrix_parameters(
            operation, graph, work, folding, acc_bits, updatable=self.updatable,
            compared=operation.output in self.thresholds,
        )  # fmt: skip
        lanes = folding.pe // parameters["BEATS"]
        weight = graph.constants[operation.weight]
        memories = {
            "weights": weight_words(weight, work, folding, operation.weight_bits) if self.filled else EMPTY,
            "biases": by_channel(graph.constants[operation.bias], folding.pe, acc_bits),
        }
        self.put(
            operation.output, "matrix_unit", (self._source(operation.source, folding.lanes),), lanes,
            _rows(work.windows, folding.lanes, work.outputs // lanes, parameters), work.cycles(folding),
            parameters=parameters, memories=memories | factors, layer=operation.output,
            multipliers=work.multipliers(folding) + (lanes * REQUANTISER_MULTIPLIERS if factors else 0),
        )  # fmt: skip

    def _constant(self, operation: op.Linear | op.Convolution) -> None:
        graph, work, folding = self.graph, self.works[operation.output], self.foldings[operation.output]
        windows = work.windows
        if work.groups > 1 or (folding.lanes, folding.taps) != (windows.channels, windows.taps):
            raise ValueError(
                f"`{operation.output}` must have one group and a folding over whole windows to have its weights in the "
                f"circuit, got {work.groups} groups and {folding}; leave it out of `--constant`"
            )
        layer = constant_layer(operation, graph, self.sums.get(operation.output))
        parameters, factors = constant_parameters(
            operation, graph, work, folding, layer, compared=operation.output in self.thresholds
        )
        lanes = folding.pe
        number = sum(node.constant is not None for node in self.nodes.values())
        self.put(
            operation.output, "constant_unit", (self._source(operation.source, windows.channels),), lanes,
            _rows(windows, windows.channels, work.outputs // lanes, parameters), work.cycles(folding),
            parameters={**parameters, "LAYER": number}, memories=factors, layer=operation.output,
            multipliers=lanes * REQUANTISER_MULTIPLIERS if factors else 0, constant=layer,
        )  # fmt: skip

    def _pool(self, operation: op.MaxPool | op.SumPool | op.Mean) -> None:
        graph = self.graph
        source, made = graph.values[operation.source], graph.values[operation.output]
        windows = windows_of(operation, graph.values, graph.constants)
        visits = math.prod(windows.out) * windows.taps * windows.channels
        lanes = _even_lanes(visits, windows.channels, self.cycles)
        largest = isinstance(operation, op.MaxPool)
        laws: dict[str, int] = {}
        factors: dict[str, MemoryFile] = {}
        if isinstance(operation, op.MaxPool):
            acc_bits = source.bits + (not source.signed)
        else:
            acc_bits = max(
                accumulator(operation, graph.values, graph.constants).bits,
                source.bits + 2,  # a difference from the zero point
            )
            laws, factors = self._law(operation, lanes)
        latency = _WINDOW_CYCLES + 1 + (law_cycles(laws) if laws else 0) + _TURN_CYCLES
        depth = -(-latency // windows.taps) + 1
        parameters: dict[str, Parameter] = {
            "LANES": lanes, "LARGEST": int(largest), "IN_W": source.bits, "IN_SIGNED": int(source.signed),
            "OUT_W": made.bits, "ACC_W": acc_bits, **_geometry(windows, lanes, visits // lanes),
            "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1],
            "PAD": source.low if largest else source.zero_point, "IN_ZERO": source.zero_point, "DEPTH": depth, **laws,
        }  # fmt: skip
        self.put(
            operation.output, "pool_unit", (self._source(operation.source, lanes),), lanes,
            _rows(windows, lanes, windows.channels // lanes, parameters), visits // lanes, parameters=parameters,
            memories=factors, layer=operation.output, multipliers=lanes * REQUANTISER_MULTIPLIERS if factors else 0,
        )  # fmt: skip

    def _sum(self, operation: op.Add | op.Rescale) -> None:
        graph, made = self.graph, self.graph.values[operation.output]
        names = op.sources_of(operation)
        sources = [graph.values[name] for name in names]
        factors_by = operation.multipliers if isinstance(operation, op.Add) else (1,)
        if len(names) > 2:
            raise ValueError(f"`{operation.output}` must add two values, got {len(names)}; {ON_ENGINE}")
        if any(each.shape != made.shape for each in sources):
            shapes = [each.shape for each in sources]
            raise ValueError(f"`{operation.output}`: values of one shape are added, got {shapes}; {ON_ENGINE}")
        lanes = _even_lanes(made.elements, made.shape[-1], self.cycles)
        acc_bits = max(accumulator(operation, graph.values, graph.constants).bits, *(each.bits + 2 for each in sources))
        laws, factors = self._law(operation, lanes)
        depth = 4 + law_cycles(laws) + _TURN_CYCLES
        parameters: dict[str, Parameter] = {"LANES": lanes, "ONE": int(len(names) == 1)}
        for letter, each, by in zip("AB", sources, factors_by, strict=False):
            parameters |= {
                f"{letter}_W": each.bits, f"{letter}_SIGNED": int(each.signed), f"{letter}_BY": by,
                f"{letter}_ZERO": each.zero_point,
            }  # fmt: skip
        self.put(
            operation.output, "add_unit", tuple(self._source(name, lanes) for name in names), lanes,
            ThroughFlow(len(names), depth), made.elements // lanes,
            parameters=parameters | {"ACC_W": acc_bits, "OUT_W": made.bits, "DEPTH": depth, **laws}, memories=factors,
            layer=operation.output, multipliers=lanes * REQUANTISER_MULTIPLIERS if factors else 0,
        )  # fmt: skip

    def _table(self, operation: op.Table) -> None:
        source, made = self.graph.values[operation.source], self.graph.values[operation.output]
        if source.bits > WIDEST_TABLE:
            raise ValueError(
                f"`{operation.output}`: a table must be of at most {WIDEST_TABLE} bits, got {source.bits}; "
                "quantise its input to fewer"
            )
        lanes = _even_lanes(made.elements, made.shape[-1], self.cycles)
        depth = 2 + _TURN_CYCLES
        entries = packed(self.graph.constants[operation.table].reshape(-1, 1), made.bits)
        parameters: dict[str, Parameter] = {
            "LANES": lanes, "IN_W": source.bits, "IN_SIGNED": int(source.signed), "OUT_W": made.bits, "DEPTH": depth,
        }  # fmt: skip
        self.put(
            operation.output, "table_unit", (self._source(operation.source, lanes),), lanes, ThroughFlow(1, depth),
            made.elements // lanes, parameters=parameters, memories={"entries": entries}, layer=operation.output,
        )  # fmt: skip

    def _lookup(self, operation: op.Embedding | op.EmbeddingBag) -> None:
        graph, made = self.graph, self.graph.values[operation.output]
        source, table = graph.values[operation.source], graph.constants[operation.table]
        size, count = table.shape[1], 1
        laws: dict[str, int] = {}
        factors: dict[str, MemoryFile] = {}
        bits = acc_bits = made.bits
        if isinstance(operation, op.EmbeddingBag):
            count, bits = source.shape[-1], operation.table_bits
            acc_bits = max(bits, accumulator(operation, graph.values, graph.constants).bits)
        windows = Windows(size=(1, count), channels=1, kernel=(1, count), images=source.elements // count)
        visits = source.elements * size
        lanes = _even_lanes(visits, size, self.cycles)
        words = size // lanes
        if isinstance(operation, op.EmbeddingBag):
            laws, factors = self._law(operation, lanes)
        # Rows as they are have the depth of sums: they never were without.
        depth = -(-(_WINDOW_CYCLES + 3 + law_cycles(laws) + _TURN_CYCLES) // count) + 1
        entries = EMPTY
        if self.filled:  # rows begin at a power of two
            padded = np.zeros((len(table), 1 << max(1, (words - 1).bit_length()), lanes), np.int64)
            padded[:, :words] = table.reshape(len(table), words, lanes)
            entries = packed(padded.reshape(-1, lanes), bits)
        parameters: dict[str, Parameter] = {
            "LANES": lanes, "IN_W": source.bits, "COUNT": count, "ROWS_OF_TABLE": len(table), "WORDS": words,
            "SUMMED": int(isinstance(operation, op.EmbeddingBag)),
            "ENTRY_W": bits, "ACC_W": acc_bits, "OUT_W": made.bits,
            "ROWS": _ring(windows, 1, visits // lanes), "DEPTH": depth, **laws,
        }  # fmt: skip
        self.put(
            operation.output, "lookup_unit", (self._source(operation.source, 1),), lanes,
            _rows(windows, 1, words, parameters), visits // lanes, parameters=parameters,
            memories={"entries": entries, **factors}, layer=operation.output,
            multipliers=lanes * REQUANTISER_MULTIPLIERS if factors else 0,
        )  # fmt: skip

    def _concat(self, operation: op.Concat) -> None:
        values, made = self.graph.values, self.graph.values[operation.output]
        if operation.axis != len(made.shape) - 1:
            raise ValueError(
                f"`{operation.output}` must join channels, the last axis, got axis {operation.axis}; {ON_ENGINE}"
            )
        channels = [values[name].shape[-1] for name in operation.sources]
        lanes = _even_lanes(made.elements, math.gcd(*channels), self.cycles)
        pixels = made.elements // made.shape[-1]
        joined = self._source(operation.sources[0], lanes)
        before = channels[0] // lanes
        for name, count in zip(operation.sources[1:], channels[1:], strict=True):
            more = count // lanes
            sources, stream = (joined, self._source(name, lanes)), self.nodes[joined].stream
            joined = f"u{len(self.nodes)}_joined"
            words = pixels * (before + more)
            self.nodes[joined] = DesignNode(
                stream=replace(stream, name=joined, words=words), module="concat_stream", sources=sources,
                flow=JoinedFlow(before, more), cycles=words, layer=operation.output,
                parameters={"W": stream.width, "FIRST": before, "SECOND": more},
            )  # fmt: skip
            before += more
        self.streams[operation.output] = joined


def resize_steps(given: int, wanted: int) -> list[tuple[int, int]]:
    """How words become others: where neither size divides the other, by way of the largest that divides both."""
    if given == wanted:
        return []
    if max(given, wanted) % min(given, wanted) == 0:
        return [(given, wanted)]
    step = math.gcd(given, wanted)
    return [(given, step), (step, wanted)]


def matrix_parameters(
    operation: op.Linear | op.Convolution, graph: IntegerGraph, work: LayerWork, folding: Folding, acc_bits: int, *,
    updatable: bool = False, compared: bool = False,
) -> tuple[dict[str, int], dict[str, MemoryFile]]:  # fmt: skip
    """Parameters of the unit of a dense layer or a convolution, and the memory of its requantiser's multipliers.

    Args:
        operation: of the layer.
        graph: that it is in.
        work: of the layer.
        folding: one that divides it.
        acc_bits: of its accumulators.
        updatable: whether another model's numbers can be brought into it.
        compared: whether its requantiser compares with thresholds.
    """
    source, made = graph.values[operation.source], graph.values[operation.output]
    windows = work.windows
    beats = work.result_beats(folding)
    lanes, sum_beats = folding.pe // beats, work.sum_beats(folding)
    levels = _levels(work.multipliers(folding) // folding.pe)
    laws, factors = law_of(graph, operation, lanes, compared=compared)
    work_cycles = _WINDOW_CYCLES + 2 + levels + 1 + law_cycles(laws)
    held = work_cycles + 1 + (_SHIFT_CYCLES if updatable else 0)
    depth = _places(work_cycles + _TURN_CYCLES, sum_beats, beats, held)
    groups = work.outputs // folding.pe if work.depthwise else work.groups
    return {
        "PE": folding.pe, "LANES": folding.lanes, "TAPS": folding.taps, "OWN": int(work.depthwise),
        "IN_W": source.bits, "IN_SIGNED": int(source.signed), "WEIGHT_W": operation.weight_bits, "ACC_W": acc_bits,
        "OUT_W": made.bits, **_geometry(windows, folding.lanes, work.cycles(folding)),
        "DILATION_Y": windows.dilation[0], "DILATION_X": windows.dilation[1], "GROUPS": groups,
        "FOLDS": 1 if work.depthwise else work.outputs // work.groups // folding.pe, "PAD": source.zero_point,
        "BEATS": beats, "DEPTH": depth, **laws,
    }, factors  # fmt: skip


def layer_sums(operation: op.Linear | op.Convolution, graph: IntegerGraph) -> ConstantSums:
    """Additions that give a layer's sums of products with their biases, from all numbers of a window at once.

    Args:
        operation: of a layer with one group of channels.
        graph: that it is in.
    """
    source = graph.values[operation.source]
    ends = min(source.low, source.zero_point, 0), max(source.high, source.zero_point, 0)
    weight = graph.constants[operation.weight]
    rows = weight.reshape(len(weight), -1).astype(np.int64)
    return constant_sums(rows, [ends] * rows.shape[1], [int(each) for each in graph.constants[operation.bias]])


def constant_layer(
    operation: op.Linear | op.Convolution, graph: IntegerGraph, sums: ConstantSums | None = None
) -> ConstantLayer:  # fmt: skip
    """A layer whose weights are part of the circuit; its additions are made unless they are given."""
    return ConstantLayer(
        sums=sums or layer_sums(operation, graph), in_bits=graph.values[operation.source].bits,
        acc_bits=accumulator(operation, graph.values, graph.constants).bits,
    )  # fmt: skip


def constant_parameters(
    operation: op.Linear | op.Convolution, graph: IntegerGraph, work: LayerWork, folding: Folding,
    layer: ConstantLayer, *, compared: bool = False,
) -> tuple[dict[str, int], dict[str, MemoryFile]]:  # fmt: skip
    """Parameters of the unit of a layer whose weights are part of the circuit, but for its number in the design.

    With them comes the memory of its requantiser's multipliers.

    Args:
        operation: of the layer.
        graph: that it is in.
        work: of the layer.
        folding: one over whole windows.
        layer: its additions.
        compared: whether its requantiser compares with thresholds.
    """
    source, made, windows = graph.values[operation.source], graph.values[operation.output], work.windows
    lanes, beats, levels = folding.pe, work.outputs // folding.pe, layer.sums.levels
    laws, factors = law_of(graph, operation, lanes, compared=compared)
    latency = _WINDOW_CYCLES + levels + 1 + law_cycles(laws) + _TURN_CYCLES
    geometry = _geometry(windows, windows.channels, work.cycles(folding))
    del geometry["WORDS"]
    return {
        "PE": work.outputs, "LANES": windows.channels, "TAPS": windows.taps, "IN_W": source.bits,
        "ACC_W": layer.acc_bits, "OUT_W": made.bits, **geometry, "DILATION_Y": windows.dilation[0],
        "DILATION_X": windows.dilation[1], "BEATS": beats, "PAD": source.zero_point,
        "DEPTH": beats * (-(-latency // beats) + 1), **laws, "LEVELS": levels,
    }, factors  # fmt: skip


def _geometry(windows: Windows, lanes: int, cycles: int) -> dict[str, int]:
    """Parameters of a line buffer in a unit that works so many cycles on a sample."""
    return {
        "WORDS": windows.channels // lanes, "HEIGHT": windows.size[0], "WIDTH": windows.size[1],
        "KERNEL_Y": windows.kernel[0], "KERNEL_X": windows.kernel[1], "STRIDE_Y": windows.stride[0],
        "STRIDE_X": windows.stride[1], "TOP": windows.padding[0], "LEFT": windows.padding[2],
        "OUT_Y": windows.out[0], "OUT_X": windows.out[1], "ROWS": _ring(windows, lanes, cycles),
    }  # fmt: skip


def _ring(windows: Windows, lanes: int, cycles: int) -> int:
    """Rows of a line buffer; one comes in no faster than its words do, nor than the unit works."""
    words = windows.size[1] * windows.channels // lanes
    return windows.ring_rows(max(words, cycles // (windows.images * windows.size[0])))


def _places(latency: int, sum_beats: int, beats: int, held: int) -> int:
    """Words of an output FIFO with which work never waits for a place.

    A beat of a sum is begun where all its words have a place, while those of the sums before are on their way: of the
    last ones some have left, one in each cycle.

    Args:
        latency: cycles from a sum's last beat to the work that the place of its first word allows, and some more.
        sum_beats: cycles of a sum.
        beats: words in which its results leave, not more than those.
        held: cycles from a sum's last beat until its first word leaves.
    """

    def needed(cycles: int) -> int:
        last = cycles + beats - 1
        return beats + sum(min(beats, last - at) for at in range(0, last, sum_beats))

    least = max(beats * (-(-latency // sum_beats) + 1), needed(held))
    return least if least <= SHALLOW else max(least, needed(held + 1))


def _rows(windows: Windows, lanes: int, words_of_result: int, parameters: Mapping[str, Parameter]) -> RowFlow:
    """How a unit with these parameters passes words on."""
    return RowFlow(
        windows, windows.size[1] * windows.channels // lanes, windows.out[1] * words_of_result,
        int(parameters["ROWS"]), int(parameters["DEPTH"]),
    )  # fmt: skip


def _levels(count: int) -> int:
    """Levels of a tree of adders."""
    return (count - 1).bit_length()


def _word(name: str) -> str:
    """A name as it may stand in Verilog."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name)
