"""Families of designs: a package in a structure, whose least design for any pace can be solved for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.folding import Folding, folded, works_of
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.rtl.timing import latency_cycles
from stoker.deploy.search.model import EstimatedDesign, ResourceModel, estimated
from stoker.deploy.search.solving import FoldingCertificate, least_share, objective, shares
from stoker.deploy.search.space import FoldingChoice, all_choices, space_for
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
        share: the largest share of a resource.
        objective: by which designs of equal worth are compared.
    """

    cycles: int
    latency_cycles: int
    multipliers: int
    estimate: EstimatedDesign
    share: float
    objective: float

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
        foldings: of its layers.
        structure: that is built of them.
        certificate: of the foldings.
    """

    foldings: Mapping[str, Folding]
    structure: Structure
    certificate: FoldingCertificate


class StructureFamily(Protocol):
    """A package in a structure."""

    @property
    def package(self) -> SearchedPackage:
        """What is built."""
        ...

    @property
    def structure(self) -> str:
        """Name of the structure."""
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
    """A unit for each layer: foldings are chosen.

    Raises:
        ValueError: an operation has no unit.
    """

    package: SearchedPackage
    part: Fpga
    model: ResourceModel
    structure: str = "dataflow"
    _choices: dict[str, list[FoldingChoice]] = field(default_factory=dict[str, list[FoldingChoice]])
    _solved: dict[int, DataflowDesign] = field(default_factory=dict[int, DataflowDesign])

    def __post_init__(self) -> None:
        self._works = works_of(self.package.graph)
        self._choices = all_choices(self.package.graph, self._works, self.model)
        lower(self.package.graph, folded(self._works, self.paces()[0]))  # what has no unit is refused here

    @property
    def requantiser(self) -> str:
        """Multipliers, shifts, or both, by layer."""
        laws = [
            operation.requantiser.multiplier is None
            for operation in self.package.graph.operations
            if isinstance(operation, (op.Linear, op.Convolution))
        ]
        return "shifts" if all(laws) else "multipliers and shifts" if any(laws) else "multipliers"

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
            graph = self.package.graph
            space = space_for(graph, self._works, self._choices, self.model, cycles)
            foldings, certificate = least_share(space, self.part, self.model)
            structure = lower(graph, foldings)
            estimate = estimated(structure, self.model)
            self._solved[cycles] = DataflowDesign(
                cycles=structure.cycles, latency_cycles=latency_cycles(structure), multipliers=structure.multipliers,
                estimate=estimate, share=max(shares(estimate.demand, self.part).values()),
                objective=objective(estimate.demand, self.part), foldings=foldings, structure=structure,
                certificate=certificate,
            )  # fmt: skip
        return self._solved[cycles]
