"""Engines as a family of designs: the size of the array is chosen, memories are as large as the model asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.deploy.rtl.engine.compiling import least_engine
from stoker.deploy.rtl.engine.cycles import sample_cycles
from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.shape import LANES
from stoker.deploy.search.engine_model import EngineModel, engine_multipliers
from stoker.deploy.search.families import SearchedPackage, SolvedDesign
from stoker.deploy.search.model import EstimatedDesign
from stoker.deploy.search.solving import first_in_order, order_of
from stoker.deploy.tools.devices import Fpga


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDesign(SolvedDesign):
    """A program of an engine.

    Attributes:
        image: of the model, with the engine's shape.
    """

    image: ModelImage


@dataclass
class EngineFamily:
    """One array, whose size is chosen, and a program.

    Raises:
        ValueError: an operation has numbers that engines have no place for.
    """

    package: SearchedPackage
    part: Fpga
    model: EngineModel
    structure: str = "engine"
    weights: str = ""
    requantiser: str = "multipliers"
    _designs: Mapping[int, EngineDesign] = field(default_factory=dict[int, EngineDesign])
    """By cycles."""

    def __post_init__(self) -> None:
        found: dict[int, EngineDesign] = {}
        for lanes in LANES:
            made = self._design(least_engine(self.package.graph, lanes))
            known = found.get(made.cycles)
            if known is None or made.order < known.order:
                found[made.cycles] = made
        self._designs = found

    @property
    def obtained(self) -> str:
        """Tools, part and engines of the model."""
        return self.model.obtained

    def paces(self) -> Sequence[int]:
        """Cycles of a sample on each size of the array."""
        return sorted(self._designs)

    def design(self, cycles: int) -> EngineDesign:
        """The engine that takes least, of those as fast.

        Raises:
            ValueError: none is as fast.
        """
        fast = [each for each in self._designs.values() if each.cycles <= cycles]
        if not fast:
            raise ValueError(f"an engine takes {min(self._designs):,} cycles a sample at least, not {cycles:,}")
        return first_in_order(sorted(fast, key=lambda each: each.cycles), lambda each: each.order)

    def _design(self, image: ModelImage) -> EngineDesign:
        demand = self.model.demand(image.shape)
        cycles = sample_cycles(image)
        return EngineDesign(
            # An engine takes one sample at a time.
            cycles=cycles, latency_cycles=cycles, multipliers=engine_multipliers(image.shape.lanes),
            estimate=EstimatedDesign(demand=demand, clock_mhz=self.model.clock_mhz),
            order=order_of(demand, self.part), image=image,
        )  # fmt: skip
