"""Families of designs: a package in a structure, whose least design for any pace can be solved for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.folding import Folding, works_of
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
        foldings: of its layers.
        structure: that is built of them.
        latency_cycles: of a sample through the empty design.
        estimate: of what it takes.
        share: the largest share of a resource.
        objective: by which designs of equal worth are compared.
        certificate: of the foldings.
    """

    foldings: Mapping[str, Folding]
    structure: Structure
    latency_cycles: int
    estimate: EstimatedDesign
    share: float
    objective: float
    certificate: FoldingCertificate

    @property
    def cycles(self) -> int:
        """Between two samples."""
        return self.structure.cycles

    @property
    def rate_per_s(self) -> float:
        """Samples a second in a full pipeline."""
        return self.estimate.clock_mhz * 1e6 / self.cycles

    @property
    def latency_s(self) -> float:
        """Time of a sample through the empty design."""
        return self.latency_cycles / (self.estimate.clock_mhz * 1e6)


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

    def paces(self) -> Sequence[int]:
        """Cycles a sample that are worth asking for, the fastest first; between two of them nothing changes."""
        ...

    def design(self, cycles: int) -> SolvedDesign:
        """The design that takes least of the part, of those with at most so many cycles a sample."""
        ...


@dataclass
class Dataflow:
    """A unit for each layer: foldings are chosen."""

    package: SearchedPackage
    part: Fpga
    model: ResourceModel
    structure: str = "dataflow"
    _choices: dict[str, list[FoldingChoice]] = field(default_factory=dict[str, list[FoldingChoice]])
    _solved: dict[int, SolvedDesign] = field(default_factory=dict[int, SolvedDesign])

    def __post_init__(self) -> None:
        self._works = works_of(self.package.graph)
        self._choices = all_choices(self.package.graph, self._works, self.model)

    @property
    def requantiser(self) -> str:
        """Multipliers, shifts, or both, by layer."""
        laws = [
            operation.requantiser.multiplier is None
            for operation in self.package.graph.operations
            if isinstance(operation, (op.Linear, op.Convolution))
        ]
        return "shifts" if all(laws) else "multipliers and shifts" if any(laws) else "multipliers"

    def paces(self) -> Sequence[int]:
        """The cycles of all foldings of all layers, from the fastest that the slowest layer can be."""
        least = max((min(each.cycles for each in choices) for choices in self._choices.values()), default=1)
        found = {each.cycles for choices in self._choices.values() for each in choices if each.cycles >= least}
        return sorted(found) or [least]

    def design(self, cycles: int) -> SolvedDesign:
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
            self._solved[cycles] = SolvedDesign(
                foldings=foldings, structure=structure, latency_cycles=latency_cycles(structure), estimate=estimate,
                share=max(shares(estimate.demand, self.part).values()), certificate=certificate,
                objective=objective(estimate.demand, self.part),
            )  # fmt: skip
        return self._solved[cycles]
