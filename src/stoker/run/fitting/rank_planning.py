"""What `stoker run --fit` decides for a program of several ranks: a certified plan for each way to share.

The first rank traces and plans before it starts; the others hear of it when the program makes its process group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec.structs

from stoker.core.errors import ConfigError, TracingError
from stoker.perf.memory.choice.fitting import FitQuestion, taken_of
from stoker.perf.memory.ranks import (
    DDP,
    SHARING,
    STAGES,
    RankFacts,
    RankWay,
    facts_of,
    of_rank,
    plan_of_way,
    plan_ranks,
    ranked,
    with_stages,
    worth_certifying,
)
from stoker.records.fitting import FitMeasure, FitPlan, RankedFits
from stoker.run.elastic.inner_program import as_rank_of, traceable
from stoker.run.fitting.devices import FitDevice
from stoker.run.fitting.pricing import priced
from stoker.run.fitting.tracing import Certified, trace, trace_plan

_ROUNDS = 3
_COUNTS = ("--nproc-per-node", "--nproc_per_node")
_NODES = ("--nnodes",)


@dataclass(frozen=True, slots=True)
class PlannedRanks:
    """The ranks that a program is to have.

    Attributes:
        ranks: how many.
        is_first: whether this process plans for all.
        program: what each of them runs.
    """

    ranks: int
    is_first: bool
    program: tuple[str, ...]


def place_of(environ: Mapping[str, str], program: Sequence[str]) -> PlannedRanks | None:
    """The ranks of a program that a launcher starts, or has started; None for a single process.

    Raises:
        ConfigError: a launcher's numbers are not numbers.
    """
    size = environ.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1:
        return PlannedRanks(int(size), environ.get("RANK", "0") == "0", tuple(program))
    inner = tuple(traceable(program))
    if inner == tuple(program) or not inner:
        return None
    options = program[: len(program) - len(inner)]
    ranks = _number(options, _COUNTS, 1) * _number(options, _NODES, 1)
    return PlannedRanks(ranks, True, inner) if ranks > 1 else None


def _number(words: Sequence[str], names: Sequence[str], default: int) -> int:
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in names:
            value = value or (words[place + 1] if place + 1 < len(words) else "")
            if not value.isdecimal() or not int(value):
                raise ConfigError(f"`{name}` must be a number for `--fit`, got {value or 'nothing'}; state it")
            return int(value)
    return default


def plans_of(place: PlannedRanks, device: FitDevice, begins: Callable[[], object] = lambda: None) -> RankedFits:
    """A certified plan for each way to share that may be chosen; the nearest miss where none fits.

    Raises:
        TracingError: the program cannot be traced.
    """
    with as_rank_of(place.ranks):
        traced = trace(place.program, device.target, begins=begins)
        words = [*place.program, "", ""]
        name = words[1] if words[0] == "-m" else words[0]
        question = FitQuestion(
            name=os.path.basename(name), features=traced.features,
            timeline=priced(traced.features, traced.timeline, device), model=traced.model, budget=device.budget,
            device=device.name, emulated=device.emulated,
        )  # fmt: skip
        facts = facts_of(question.timeline, traced.model.units, traced.model.optimizers)
        plans = plan_ranks(question, place.ranks, facts)
        as_it_is = plans[DDP]
        if as_it_is.fits and not as_it_is.measures:
            return ranked({DDP: as_it_is}, facts)
        plans, facts, refused = with_stages(question, place.ranks, facts, plans)
        # A trace takes seconds: it is made of those that may be chosen.
        certifying = _Certifying(place, device, question, facts)
        for way in worth_certifying(plans):
            if not plans[way].certified:
                plans[way] = certifying.of(way)
        others = [way for way in plans if way != STAGES]
        for way in sorted((way for way in others if plans[way].fits), key=lambda way: plans[way].peak_bytes):
            if any(plans[other].fits and plans[other].certified for other in others):
                break
            plans[way] = certifying.of(way)
        plans = {way: plan for way, plan in plans.items() if plan.certified or not plan.fits}
    return ranked(plans, facts, refused)


class _Certifying:
    """Plans whose peaks are those of their own traces.

    Args:
        place: of the ranks.
        device: where it is to fit.
        question: of the program as one process.
        facts: of its blocks.
    """

    def __init__(self, place: PlannedRanks, device: FitDevice, question: FitQuestion, facts: RankFacts) -> None:
        self._place, self._device, self._question, self._facts = place, device, question, facts
        self._traced: dict[tuple[FitMeasure, ...], Certified | TracingError] = {}
        """By what is done besides sharing: several ways may do the same."""

    def of(self, way: RankWay) -> FitPlan:
        """The plan of a way; its nearest miss where it does not fit."""
        question, device = self._question, self._device
        margin, nearest = 0, None
        plan = plan_of_way(question, self._facts, self._place.ranks, way)
        for _ in range(_ROUNDS):
            others = tuple(each for each in plan.measures if each.kind not in SHARING)
            if not others:
                return msgspec.structs.replace(plan, certified=True)
            found = self._trace(plan, others)
            if isinstance(found, TracingError):
                reason = f"the program does not run with it: {found}"
                question = replace(question, barred={**question.barred, "recompute": reason})
            else:
                if not found.left:
                    changed = of_rank(found.timeline, self._facts, self._place.ranks, way)
                    peak = taken_of(changed, emulated=device.emulated, expandable=bool(plan.of("expandable")))
                    lacks = max(0, peak - device.budget)
                    certified = msgspec.structs.replace(plan, peak_bytes=peak, lacks_bytes=lacks, certified=True)
                    if certified.fits or (nearest is not None and peak >= nearest.peak_bytes):
                        return certified if certified.fits or nearest is None else nearest
                    nearest, margin = certified, margin + lacks
                question = replace(question, without={**question.without, **found.left})
            plan = plan_of_way(question, self._facts, self._place.ranks, way, margin)
        return nearest or plan

    def _trace(self, plan: FitPlan, others: tuple[FitMeasure, ...]) -> Certified | TracingError:
        key = tuple(msgspec.structs.replace(each, saves_bytes=0, added_s=None) for each in others)
        if key not in self._traced:
            try:
                self._traced[key] = trace_plan(
                    self._place.program, self._device.target, msgspec.structs.replace(plan, measures=others)
                )
            except TracingError as error:
                self._traced[key] = error
        return self._traced[key]
