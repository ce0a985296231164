"""Which design to build: of each family the least that keeps the limits, a front over all, a pick; pure.

Along the paces of a family a slower design takes less, and gives less: so the slowest that keeps rate and latency is
found by halving, and so is the one that misses the limits least where nothing keeps them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from stoker.core import pareto
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.search.families import SolvedDesign, StructureFamily
from stoker.deploy.search.model import KINDS
from stoker.deploy.search.solving import first_in_order, nearly_least, share_of, shares
from stoker.deploy.tools.devices import Fpga
from stoker.records.deploy.hardware import UNPLACED

_LADDER = 12
"""Paces of each family that are solved for the front, evenly spaced on a logarithmic scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignLimits:
    """Limits; infinite or 0 for none.

    Attributes:
        latency_s: most, of a sample through an empty design.
        rate_per_s: least, in a full pipeline.
        loss_frac: most that a package may lose against float.

    Raises:
        ValueError: one is not positive.
    """

    latency_s: float = math.inf
    rate_per_s: float = 0.0
    loss_frac: float = math.inf

    def __post_init__(self) -> None:
        if not self.latency_s > 0:
            raise ValueError(f"`latency` must be positive, got {self.latency_s}")
        for name in ("rate_per_s", "loss_frac"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"`{name}` must be at least 0, got {getattr(self, name)}")

    @property
    def is_paced(self) -> bool:
        """Whether speed is limited; else the fastest design that fits is wanted."""
        return self.rate_per_s > 0 or math.isfinite(self.latency_s)

    def slowness(self, design: SolvedDesign) -> float:
        """The larger ratio of a design's latency and interval to what is allowed; at most 1 if it keeps both."""
        return max(self.slownesses(design))

    def slownesses(self, design: SolvedDesign) -> tuple[float, float]:
        """Both ratios, of the latency and of the interval.

        Speed is limited only where a clock is known (:func:`check_clock`): else both limits are endless.
        """
        return design.latency / self.latency_s, self.rate_per_s * design.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDesign:
    """A design of a family, against the limits.

    Attributes:
        family: that it is of.
        design: solved.
        ratios: to limits, the largest first; where it keeps one, 1.
    """

    family: StructureFamily
    design: SolvedDesign
    ratios: tuple[float, ...]

    @property
    def excess(self) -> float:
        """The largest ratio to a limit; 1 if it keeps all."""
        return self.ratios[0]

    @property
    def loss_frac(self) -> float:
        """What its package loses; 0 where that was not measured."""
        return self.family.package.loss_frac or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyOutcome:
    """What became of a family.

    Attributes:
        family: of designs.
        best: its design that comes nearest to the limits, or keeps them with the least share.
        tried: paces that were solved.
        front: its own designs that fit and that no other of it beats, the fastest first.
    """

    family: StructureFamily
    best: FoundDesign
    tried: int
    front: Sequence[FoundDesign]


@dataclass(frozen=True, slots=True)
class RefusedFamily:
    """A package in a structure that can't be built.

    Attributes:
        package: as the user named it.
        structure: name of the structure.
        why: it can't be.
    """

    package: str
    structure: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """All of it.

    Attributes:
        pick: the design to build; None if none keeps the limits.
        nearest: the one that misses them least; the pick, if there is one.
        front: designs that no other beats in interval, latency, share, loss and bytes from the host, the fastest first.
        families: in the order given.
    """

    pick: FoundDesign | None
    nearest: FoundDesign
    front: Sequence[FoundDesign]
    families: Sequence[FamilyOutcome]


def check_alike(packages: Sequence[tuple[str, IntegerGraph]]) -> None:
    """Raises for packages that are not of one model: those of one take and give the same.

    Args:
        packages: with their names.

    Raises:
        ValueError: an input or an output of one has another name, kind or shape than the first package's.
    """
    first, whole = packages[0]
    for name, graph in packages[1:]:
        for kind, ours, theirs in (("inputs", whole.inputs, graph.inputs), ("outputs", whole.outputs, graph.outputs)):
            for one, other in itertools.zip_longest(map(_said, ours), map(_said, theirs), fillvalue="none"):
                if one != other:
                    raise ValueError(
                        f"`PACKAGE` must be packages of one model, with the same {kind}, got {one} in {first} and "
                        f"{other} in {name}; search them one after the other"
                    )


def _said(port: ModelPort) -> str:
    return f"`{port.name}` {port.dtype}{list(port.shape)}"


def check_clock(part: Fpga, wanted: DesignLimits, clock_mhz: float | None) -> None:
    """Refuses limits in seconds where no clock is known, and a stated clock where one is estimated.

    Args:
        part: that is searched on.
        wanted: limits.
        clock_mhz: as stated; None if none is.

    Raises:
        ValueError: it is one of the two.
    """
    if part.is_placed and clock_mhz is not None:
        raise ValueError(
            f"`clock` must be left out for {part.name}, whose clocks are estimated, got {clock_mhz:g} MHz; "
            "state one for parts on which designs are synthesised, not placed"
        )
    if not part.is_placed and clock_mhz is None and wanted.is_paced:
        limit = "latency" if math.isfinite(wanted.latency_s) else "rate"
        raise ValueError(
            f"`{limit}` is in seconds and needs a clock, and designs for {part.name} are {UNPLACED}; state the clock "
            "that the design will have, such as `--clock 100MHz`, or leave the limit out"
        )


def search(families: Sequence[StructureFamily], wanted: DesignLimits) -> SearchOutcome:
    """Searches all families.

    Args:
        families: at least one.
        wanted: limits.
    """
    outcomes: list[FamilyOutcome] = []
    everything: list[FoundDesign] = []
    for family in families:
        search_of_it = _FamilySearch(family, wanted)
        best = search_of_it.best()
        found = search_of_it.found.values()
        own = pareto.front((each for each in found if each.design.share <= 1.0), _figures)
        outcomes.append(FamilyOutcome(family=family, best=best, tried=len(found), front=own))
        everything += own
    nearest = _best([each.best for each in outcomes], wanted)
    return SearchOutcome(
        pick=nearest if nearest.excess <= 1.0 else None, nearest=nearest, families=outcomes,
        front=pareto.front(everything, _figures),
    )  # fmt: skip


def _figures(found: FoundDesign) -> tuple[float, ...]:
    design = found.design
    return design.interval, design.latency, design.share, found.loss_frac, design.host_bytes


def _best(found: Iterable[FoundDesign], wanted: DesignLimits) -> FoundDesign:
    """One that keeps the limits, by bytes from the host and share, or by the interval where no speed was asked for.

    Of designs that miss limits, the one whose largest miss is least; of equal ones, whose next is least, and so on.
    Shares and misses are equal within what a design is solved to, and then the sum of shares decides.
    """
    every = list(found)
    near = [each for each in every if each.excess <= 1.0]
    if near:
        first = min(_before_share(each, wanted) for each in near)
        near = [each for each in near if _before_share(each, wanted) == first]
    else:
        near = every
        for at in range(len(every[0].ratios)):
            near = nearly_least(near, lambda each, at=at: each.ratios[at])
    return first_in_order(sorted(near, key=lambda each: each.design.interval), lambda each: each.design.order)


def _before_share(found: FoundDesign, wanted: DesignLimits) -> tuple[float, ...]:
    design = found.design
    return (design.host_bytes,) if wanted.is_paced else (design.interval, design.host_bytes)


@dataclass
class _FamilySearch:
    """One family's paces, solved as they are asked for."""

    family: StructureFamily
    wanted: DesignLimits
    found: dict[int, FoundDesign] = field(default_factory=dict[int, FoundDesign])

    def best(self) -> FoundDesign:
        """Solves a ladder of paces, then narrows in on the one that is wanted."""
        paces = self.family.paces()
        for pace in _ladder(paces):
            self._at(pace)
        wanted = self.wanted
        if wanted.is_paced:
            self._first(paces, lambda found: wanted.slowness(found.design) > 1.0)
        best, kinds = _best(self.found.values(), wanted), list(KINDS)
        while kinds:
            # The place where these kinds fit, or are missed as much as the speed is; the one that is missed most may be
            # missed by as much at all paces, and then the others decide.
            self._first(paces, lambda found: max(self._shares(found, kinds)) <= max(1.0, wanted.slowness(found.design)))
            best = _best(self.found.values(), wanted)
            worst = dict(zip(kinds, self._shares(best, kinds), strict=True))
            kinds.remove(max(kinds, key=lambda kind: worst[kind]))
            if best.excess <= 1.0:
                break
        return best

    def _shares(self, found: FoundDesign, kinds: Sequence[str]) -> list[float]:
        part = self.family.part
        return [share_of(found.design.estimate.demand.of(kind), getattr(part, kind)) for kind in kinds]

    def _first(self, paces: Sequence[int], holds: Callable[[FoundDesign], bool]) -> None:
        """Solves around the fastest pace from which on something holds."""
        low, high = 0, len(paces)
        while low < high:
            middle = (low + high) // 2
            if holds(self._at(paces[middle])):
                high = middle
            else:
                low = middle + 1

    def _at(self, cycles: int) -> FoundDesign:
        if cycles not in self.found:
            design, wanted = self.family.design(cycles), self.wanted
            loss = self.family.package.loss_frac
            lost = 0.0 if loss is None or not math.isfinite(wanted.loss_frac) else _ratio(loss, wanted.loss_frac)
            taken = shares(design.estimate.demand, self.family.part).values()
            ratios = sorted((max(1.0, each) for each in (*taken, *wanted.slownesses(design), lost)), reverse=True)
            self.found[cycles] = FoundDesign(family=self.family, design=design, ratios=tuple(ratios))
        return self.found[cycles]


def _ladder(paces: Sequence[int]) -> list[int]:
    """A dozen of the paces if there are more, as evenly spaced on a logarithmic scale as they are."""
    if len(paces) <= _LADDER:
        return list(paces)
    logs = [math.log(pace) for pace in paces]
    wanted = (logs[0] + (logs[-1] - logs[0]) * step / (_LADDER - 1) for step in range(_LADDER))
    return [min(paces, key=lambda pace, at=at: abs(math.log(pace) - at)) for at in wanted]


def _ratio(value: float, most: float) -> float:
    return value / most if most else (math.inf if value else 0.0)
