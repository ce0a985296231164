"""What may be chosen in a dataflow design: foldings by layer with what each takes, and where widths of words meet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.core import pareto
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import tables_of
from stoker.deploy.rtl.constant_sums import ConstantSums
from stoker.deploy.rtl.folding import Folding, LayerWork, constant_folding, divisors, folded
from stoker.deploy.rtl.mapping import constant_layer, constant_parameters, lower, matrix_parameters, resize_steps
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.search.contents import contents_of, sums_contents
from stoker.deploy.search.model import KINDS, DeviceDemand, ResourceModel, estimated, node_contents


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldingChoice:
    """A form of a layer's unit.

    Attributes:
        folding: of it.
        cycles: of a sample.
        lanes_out: numbers of a word of its results.
        demand: of the unit.
        constant: whether the weights are part of the circuit; else they are in memories.
        compared: whether its requantiser compares with thresholds; else it multiplies or shifts.
    """

    folding: Folding
    cycles: int
    lanes_out: int
    demand: DeviceDemand
    constant: bool = False
    compared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChoice:
    """A table that may stay on the host.

    Attributes:
        layer: the value that its rows become.
        saved: what its unit takes on the chip.
        more_bytes: what a sample sends more where it is on the host.
    """

    layer: str
    saved: DeviceDemand
    more_bytes: int


@dataclass(frozen=True, slots=True)
class LanesOf:
    """Numbers of a word: those that a layer reads, or those of its results; or a fixed number, where nothing is chosen.

    Attributes:
        layer: by the name of its result; empty for a fixed number.
        reads: whether it is what the layer reads.
        fixed: the number; 0 where a layer decides.
    """

    layer: str = ""
    reads: bool = False
    fixed: int = 0

    def lanes(self, choice: FoldingChoice) -> int:
        """The number, under a choice of the layer."""
        if not self.layer:
            return self.fixed
        return choice.folding.lanes if self.reads else choice.lanes_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """A stream from one end to another: where their words differ, it is resized.

    Attributes:
        given: words as they come.
        wanted: words as they are read.
        bits: of a number.
    """

    given: LanesOf
    wanted: LanesOf
    bits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSpace:
    """What may be chosen for a number of cycles a sample.

    Attributes:
        layers: choices of each layer, none of which another beats at the same widths.
        meetings: of streams of which at least one end is a layer's.
        rest: what all else takes, tables included.
        combinations: of all choices that are as fast, before any was left out.
        tables: that may leave the chip.
    """

    layers: Mapping[str, Sequence[FoldingChoice]]
    meetings: Sequence[Meeting]
    rest: DeviceDemand
    combinations: int
    tables: Sequence[TableChoice] = ()


def resized(meeting: Meeting, given: int, wanted: int, model: ResourceModel) -> DeviceDemand:
    """What a stream takes whose words are made another size."""
    found = DeviceDemand()
    for before, after in resize_steps(given, wanted):
        parameters = {"W": meeting.bits, "IN_LANES": before, "OUT_LANES": after}
        found += model.demand(contents_of("resize_stream", parameters))
    return found


def all_choices(
    graph: IntegerGraph, works: Mapping[str, LayerWork], model: ResourceModel,
    sums: Mapping[str, ConstantSums] | None = None, compared: Collection[str] = (),
) -> dict[str, list[FoldingChoice]]:  # fmt: skip
    """Every folding of each layer.

    Args:
        graph: of the model.
        works: of its layers.
        model: of what they take.
        sums: additions of layers that may have their weights in the circuit.
        compared: layers whose requantisers may compare with thresholds; each form has both where that may take less
            (:func:`may_compare`).
    """
    found: dict[str, list[FoldingChoice]] = {}
    for operation in graph.operations:
        work = works.get(operation.output)
        if work is None or not isinstance(operation, (op.Linear, op.Convolution)):
            continue
        acc_bits = accumulator(operation, graph.values, graph.constants).bits
        choices: list[FoldingChoice] = []
        forms = (False, True) if operation.output in compared else (False,)
        for folding in work.foldings():
            demands: list[DeviceDemand] = []
            for by_thresholds in forms:
                parameters, _ = matrix_parameters(operation, graph, work, folding, acc_bits, compared=by_thresholds)
                demands.append(model.demand(contents_of("matrix_unit", parameters)))
            choices += _in_forms(
                demands, folding=folding, cycles=work.cycles(folding),
                lanes_out=folding.pe // work.result_beats(folding),
            )  # fmt: skip
        if sums and operation.output in sums:
            choices += _constant_choices(operation, graph, work, model, sums[operation.output], forms)
        found[operation.output] = choices
    return found


def may_compare(scaled: DeviceDemand, compared: DeviceDemand) -> bool:
    """Whether thresholds may be worth it in a unit: its multipliers are of lookup tables, and thresholds take fewer.

    Where a device has multipliers, these scale: a requantiser's takes few lookup tables besides.

    Args:
        scaled: what the unit takes with a requantiser that multiplies.
        compared: what it takes with one that compares.
    """
    return scaled.dsps == compared.dsps and compared.luts < scaled.luts


def compared_besides(reference: Structure, other: Structure, model: ResourceModel) -> tuple[str, ...]:
    """Layers without an array that take less with thresholds, and no more block memories.

    Args:
        reference: a design whose requantisers multiply.
        other: the same with thresholds wherever they can be.
        model: of what they take.
    """
    found: list[str] = []
    for name, node in other.nodes.items():
        if not node.parameters.get("THRESHOLDS") or node.module in ("matrix_unit", "constant_unit"):
            continue
        demands = [model.demand(node_contents(each)) for each in (reference.nodes[name], node)]
        if may_compare(*demands) and demands[1].block_rams <= demands[0].block_rams:
            found.append(node.layer)
    return tuple(found)


def _in_forms(
    demands: Sequence[DeviceDemand], *, folding: Folding, cycles: int, lanes_out: int, constant: bool = False
) -> Iterator[FoldingChoice]:  # fmt: skip
    """A unit with a requantiser that multiplies, and with one that compares where that may be worth it."""
    for compared, demand in enumerate(demands):
        if not compared or may_compare(demands[0], demand):
            yield FoldingChoice(
                folding=folding, cycles=cycles, lanes_out=lanes_out, demand=demand, constant=constant,
                compared=bool(compared),
            )  # fmt: skip


def _constant_choices(
    operation: op.Linear | op.Convolution, graph: IntegerGraph, work: LayerWork, model: ResourceModel,
    sums: ConstantSums, forms: Sequence[bool],
) -> Iterator[FoldingChoice]:  # fmt: skip
    """Forms of a layer with its weights in the circuit, by the results that leave in a cycle."""
    layer = constant_layer(operation, graph, sums)
    added = sums_contents(sums)
    for results in divisors(work.outputs):
        folding = constant_folding(operation.output, work, results)
        demands: list[DeviceDemand] = []
        for compared in forms:
            parameters, _ = constant_parameters(operation, graph, work, folding, layer, compared=compared)
            demands.append(model.demand(contents_of("constant_unit", parameters) + added))
        yield from _in_forms(
            demands, folding=folding, cycles=work.cycles(folding), lanes_out=results, constant=True
        )  # fmt: skip


def space_for(
    graph: IntegerGraph, works: Mapping[str, LayerWork], choices: Mapping[str, Sequence[FoldingChoice]],
    model: ResourceModel, cycles: int, compared: Collection[str] = (),
) -> ChoiceSpace:  # fmt: skip
    """What may be chosen for so many cycles a sample.

    Units without an array work at the pace of the slowest array, and FIFOs in front of joins have the depths of the
    foldings with the fewest multipliers: both are fixed here, and exact in the design that is made of a solution.

    Args:
        graph: of the model.
        works: of its layers.
        choices: of each of them.
        model: of what they take.
        cycles: of a sample, at most.
        compared: layers without an array whose requantisers compare with thresholds.

    Raises:
        ValueError: a layer can't be as fast.
    """
    reference = lower(graph, folded(works, cycles), filled=False, thresholds=compared)
    combinations = 1
    layers: dict[str, Sequence[FoldingChoice]] = {}
    for name in works:
        fast = [choice for choice in choices[name] if choice.cycles <= cycles]
        combinations *= len(fast)
        by_widths: dict[tuple[int, int], list[FoldingChoice]] = defaultdict(list)
        for choice in fast:
            by_widths[choice.folding.lanes, choice.lanes_out].append(choice)
        layers[name] = [
            choice
            for alike in by_widths.values()
            for choice in pareto.front(alike, lambda each: [each.demand.of(kind) for kind in KINDS])
        ]
    meetings = list(_meetings(graph, works, reference))
    return ChoiceSpace(
        layers=layers, meetings=meetings, rest=_rest(reference, model, _adapters(reference)),
        combinations=combinations, tables=list(_tables(graph, reference, model)),
    )  # fmt: skip


def _tables(graph: IntegerGraph, reference: Structure, model: ResourceModel) -> Iterator[TableChoice]:
    units = {node.layer: node for node in reference.nodes.values() if node.module == "lookup_unit"}
    for each in tables_of(graph):
        saved = model.demand(node_contents(units[each.layer]))
        yield TableChoice(layer=each.layer, saved=saved, more_bytes=each.more_bytes)


def _adapters(reference: Structure) -> set[str]:
    """Nodes that resize a stream from or to an array, however many in a row: they depend on what is chosen."""
    found: set[str] = set()
    # Several in a row are found from either end.
    for name in (*reference.nodes, *reversed(list(reference.nodes))):
        node = reference.nodes[name]
        if node.module != "resize_stream":
            continue
        readers = [reference.nodes[reader] for reader, _ in reference.readers(name) if reader]
        around = [reference.nodes[node.sources[0]], *readers]
        if any(each.module == "matrix_unit" or each.name in found for each in around):
            found.add(name)
    return found


def _rest(reference: Structure, model: ResourceModel, adapters: set[str]) -> DeviceDemand:
    """What nodes take that are neither arrays nor adapters, with the frame around them."""
    found = estimated(reference, model).demand
    for name, node in reference.nodes.items():
        if node.module == "matrix_unit" or name in adapters:
            found -= model.demand(node_contents(node))
    return found


def _meetings(graph: IntegerGraph, works: Mapping[str, LayerWork], reference: Structure) -> Iterator[Meeting]:
    carried = {node.layer: node.stream for node in reference.nodes.values() if node.layer}
    first: dict[str, str] = {}
    for operation in graph.operations:
        if operation.output in works:
            for source in op.sources_of(operation):
                first.setdefault(source, operation.output)
    for operation in graph.operations:
        if isinstance(operation, op.Reshape):
            continue
        for source in op.sources_of(operation):
            value = _origin(graph, source)
            if operation.output in works:
                wanted = LanesOf(operation.output, reads=True)
            else:
                wanted = LanesOf(fixed=carried[operation.output].lanes)
                if isinstance(operation, (op.Embedding, op.EmbeddingBag)):
                    wanted = LanesOf(fixed=1)
            if value in works:
                given = LanesOf(value)
            elif graph.producer(value) is None and value in first:
                given = LanesOf(first[value], reads=True)  # an input has the words of its first array
            else:
                given = LanesOf(fixed=carried[value].lanes)
            if given != wanted and (given.layer or wanted.layer):
                yield Meeting(given=given, wanted=wanted, bits=graph.values[source].bits)


def _origin(graph: IntegerGraph, value: str) -> str:
    """The value whose stream carries another one: a reshape moves nothing."""
    while isinstance(producer := graph.producer(value), op.Reshape):
        value = producer.source
    return value
