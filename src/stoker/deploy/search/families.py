"""Families of designs: a package in a structure, whose least design for any pace can be solved for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import device_graph, sliced_tables, tables_of
from stoker.deploy.rtl.constant_sums import ConstantSums, signed_digits
from stoker.deploy.rtl.folding import Folding, folded, works_of
from stoker.deploy.rtl.mapping import layer_sums, lower
from stoker.deploy.rtl.memories import comparable
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.rtl.timing import latency_cycles
from stoker.deploy.search.model import SOFT, EstimatedDesign, ResourceModel, estimated
from stoker.deploy.search.solving import ChosenDesign, FoldingCertificate, Order, first_in_order, least_share, order_of
from stoker.deploy.search.space import FoldingChoice, all_choices, compared_besides, space_for
from stoker.deploy.tools.devices import Fpga


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedPackage:
    """A package that may be built.

    Attributes:
        name: as the user gave it.
        digest: of it.
        graph: of the model.
        loss_frac: what it loses against float, as measured when it was made; None if that was not.
    """

    name: str
    digest: str
    graph: IntegerGraph
    loss_frac: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SolvedDesign:
    """The design of a family that takes the least share of a part at a pace.

    Attributes:
        cycles: between two samples.
        latency_cycles: of a sample through the empty design.
        multipliers: of all parts.
        estimate: of what it takes.
        order: largest share of a resource, and the sum of all: by which designs of equal worth are compared.
        host_bytes: that a sample sends more because of tables on the host.
    """

    cycles: int
    latency_cycles: int
    multipliers: int
    estimate: EstimatedDesign
    order: Order
    host_bytes: int = 0

    @property
    def share(self) -> float:
        """The largest share of a resource."""
        return self.order[0]

    @property
    def interval(self) -> float:
        """Time between two samples in a full pipeline: in seconds, or in cycles where no clock is known.

        Designs for one part are all in one or all in the other.
        """
        return self._time(self.cycles)

    @property
    def latency(self) -> float:
        """Time of a sample through the empty design, in the same."""
        return self._time(self.latency_cycles)

    def _time(self, cycles: int) -> float:
        clock = self.estimate.clock_mhz
        return float(cycles) if clock is None else cycles / (clock * 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataflowDesign(SolvedDesign):
    """A unit for each layer.

    Attributes:
        chosen: forms of its layers and places of its tables.
        structure: that is built of them, its memories left empty (:meth:`Dataflow.written`).
    """

    chosen: ChosenDesign
    structure: Structure

    @property
    def foldings(self) -> Mapping[str, Folding]:
        """What its layers compute in a cycle."""
        return self.chosen.foldings

    @property
    def certificate(self) -> FoldingCertificate:
        """The proof of what was chosen."""
        return self.chosen.certificate


MOST_DIGITS = 4000
"""Signed digits of a layer's weights that are not 0, up to which its additions are looked for: seconds of a processor.
Each takes about five lookup tables, so that a larger layer fills most of a part alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantForms:
    """Which layers may have their weights in the circuit.

    Attributes:
        sums: their additions, by layer.
        refused: why others may not.
    """

    sums: Mapping[str, ConstantSums] = field(default_factory=dict[str, ConstantSums])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


def constant_forms(graph: IntegerGraph) -> ConstantForms:
    """Looks for the additions of each layer that may have its weights in the circuit; takes seconds."""
    sums: dict[str, ConstantSums] = {}
    refused: dict[str, str] = {}
    for operation in graph.operations:
        if not isinstance(operation, (op.Linear, op.Convolution)):
            continue
        digits = sum(1 for each in graph.constants[operation.weight].flat for _ in signed_digits(int(each)))
        if isinstance(operation, op.Convolution) and operation.groups > 1:
            refused[operation.output] = f"its channels are in {operation.groups} groups"
        elif digits > MOST_DIGITS:
            refused[operation.output] = f"they have {digits:,} digits, and up to {MOST_DIGITS:,} were looked at"
        else:
            sums[operation.output] = layer_sums(operation, graph)
    return ConstantForms(sums=sums, refused=refused)


class StructureFamily(Protocol):
    """A package in a structure."""

    @property
    def package(self) -> SearchedPackage:
        """What is built."""
        ...

    @property
    def part(self) -> Fpga:
        """On which."""
        ...

    @property
    def structure(self) -> str:
        """Name of the structure."""
        ...

    @property
    def weights(self) -> str:
        """Where they may be: ``memories``, or ``any`` for the circuit as well; empty where that is no choice."""
        ...

    @property
    def requantiser(self) -> str:
        """How sums are brought to results' scales."""
        ...

    @property
    def obtained(self) -> str:
        """How the model of what it takes was obtained."""
        ...

    def paces(self) -> Sequence[int]:
        """Cycles a sample that are worth asking for, the fastest first; between two of them nothing changes."""
        ...

    def design(self, cycles: int) -> SolvedDesign:
        """The design that takes least of the part, of those with at most so many cycles a sample."""
        ...


@dataclass
class Dataflow:
    """A unit for each layer: foldings are chosen, where weights are, and where tables are.

    Args:
        package: what is built.
        part: on which.
        model: of what it takes.
        constants: layers that may have their weights in the circuit; none by default.
        host: whether tables may stay on the host; they do where a design does not fit otherwise.
        compares: whether requantisers may compare with thresholds; they do where multipliers are of lookup tables, and
            that takes less.

    Raises:
        ValueError: an operation has no unit.
    """

    package: SearchedPackage
    part: Fpga
    model: ResourceModel
    constants: ConstantForms = field(default_factory=ConstantForms)
    host: bool = False
    compares: bool = True
    structure: str = "dataflow"
    _choices: dict[str, list[FoldingChoice]] = field(default_factory=dict[str, list[FoldingChoice]])
    _solved: dict[int, DataflowDesign] = field(default_factory=dict[int, DataflowDesign])

    def __post_init__(self) -> None:
        graph = self.package.graph
        self._away = tuple(sliced_tables(graph)) if self.host else ()
        self._graph = device_graph(graph, self._away)
        self._works = works_of(self._graph)
        able = comparable(self._graph) if self.compares and self.model.family in SOFT else ()
        self._choices = all_choices(self._graph, self._works, self.model, self.constants.sums, able)
        small = folded(self._works, self.paces()[-1])
        reference = lower(self._graph, small, filled=False)  # what has no unit is refused here
        other = lower(self._graph, small, filled=False, thresholds=able)
        self._besides = compared_besides(reference, other, self.model)

    @property
    def weights(self) -> str:
        """In memories, or by layer in the circuit as well."""
        return "any" if self.constants.sums else "memories"

    @property
    def requantiser(self) -> str:
        """Multipliers, shifts, or both, by layer; with thresholds where these may take less than multipliers."""
        laws = [
            operation.requantiser.multiplier is None
            for operation in self.package.graph.operations
            if isinstance(operation, (op.Linear, op.Convolution))
        ]
        scaled = "multipliers"
        if self._besides or any(each.compared for choices in self._choices.values() for each in choices):
            scaled = "multipliers or thresholds"
        return "shifts" if all(laws) else f"{scaled} and shifts" if any(laws) else scaled

    @property
    def obtained(self) -> str:
        """Tools, part and designs of the model."""
        return self.model.obtained

    def paces(self) -> Sequence[int]:
        """The cycles of all foldings of all layers, from the fastest that the slowest layer can be."""
        least = max((min(each.cycles for each in choices) for choices in self._choices.values()), default=1)
        found = {each.cycles for choices in self._choices.values() for each in choices if each.cycles >= least}
        return sorted(found) or [least]

    def design(self, cycles: int) -> DataflowDesign:
        """Solved once for each number of cycles.

        Raises:
            ValueError: a layer can't be as fast.
        """
        if cycles not in self._solved:
            found = self._made(cycles)
            if self.host and found.share > 1 >= found.certificate.largest:
                # What follows from the choice, as depths of FIFOs, is known of a whole design alone: it gets its room.
                again = self._made(cycles, 2.0 - found.share)
                found = again if again.share <= 1 else found
            self._solved[cycles] = found
        return self._solved[cycles]

    def _made(self, cycles: int, room: float = 1.0) -> DataflowDesign:
        space = space_for(self._graph, self._works, self._choices, self.model, cycles, self._besides)
        chosen = least_share(space if self.host else replace(space, tables=()), self.part, self.model, room)
        away = (*self._away, *chosen.host_tables)
        own, sums = device_graph(self.package.graph, away), self.constants.sums
        there = {operation.output for operation in own.operations}
        compared = (*chosen.compared, *(name for name in self._besides if name in there))
        structure = lower(
            own, chosen.foldings, constant=chosen.constant, sums=sums, filled=False, thresholds=compared
        )  # fmt: skip
        structure = replace(structure, host_tables=tuple(sorted(away)))
        estimate = estimated(structure, self.model)
        return DataflowDesign(
            cycles=structure.cycles, latency_cycles=latency_cycles(structure), multipliers=structure.multipliers,
            estimate=estimate, order=order_of(estimate.demand, self.part), structure=structure, chosen=chosen,
            host_bytes=sum(each.more_bytes for each in tables_of(self.package.graph) if each.layer in away),
        )  # fmt: skip

    def written(self, design: DataflowDesign) -> Structure:
        """The structure of a design of this family as ``stoker deploy rtl`` writes it, its memories filled."""
        away, chosen = design.structure.host_tables, design.chosen
        own = device_graph(self.package.graph, away)
        found = lower(
            own, chosen.foldings, constant=chosen.constant, sums=self.constants.sums,
            thresholds=design.structure.thresholds,
        )  # fmt: skip
        return replace(found, host_tables=away)

    def forms(self, cycles: int) -> dict[str, list[FoldingChoice]]:
        """The least form of each layer that is as fast: with its weights in memories, and in the circuit."""
        found: dict[str, list[FoldingChoice]] = {}
        for name, choices in self._choices.items():
            fast = [each for each in choices if each.cycles <= cycles]
            by_form = ([each for each in fast if each.constant == constant] for constant in (False, True))
            found[name] = [
                first_in_order(each, lambda one: order_of(one.demand, self.part)) for each in by_form if each
            ]
        return found
