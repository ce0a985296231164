"""Prices the promising candidates of a space, and records why others are not priced.

A candidate is priced unless a known plan beats it even if its exchange were free: a step takes at least what its
computation takes on one GPU, divided by the GPUs that share it, idle stages of a pipeline included. Micro-batches are
tried from the largest down, until smaller ones are worse. The benchmark ``plan_quality`` checks that the plans found
have the front of all candidates. Beaten means by more than a tie, so that a simpler plan can win the tie. Only
calibrated plans beat candidates that may be calibrated, since these may replace extrapolated plans.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from stoker.perf.communication.step_on_cluster import is_measured
from stoker.perf.planning.choosing import TIE, PlanLimits
from stoker.perf.planning.pricing import PricedPlan, Rejection, TrainingJob, price
from stoker.perf.planning.space import Candidate, Space, groups
from stoker.perf.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Rejected:
    """Candidates that cannot run: how many, and the one that lacks least."""

    count: int
    least: Rejection


@dataclass(slots=True)
class Found:
    """What a search has found.

    Attributes:
        plans: that were priced; the front of all candidates is among them.
        tried: candidates by family.
        beaten: of each family, how many need not be priced.
        unfit: of each family, how many do not fit, and the one that lacks least.
        refused: of each family, how many have no prediction, and one of them.
    """

    plans: list[PricedPlan] = field(default_factory=list[PricedPlan])
    tried: dict[str, int] = field(default_factory=dict[str, int])
    beaten: dict[str, int] = field(default_factory=dict[str, int])
    unfit: dict[str, Rejected] = field(default_factory=dict[str, "Rejected"])
    refused: dict[str, Rejected] = field(default_factory=dict[str, "Rejected"])

    def add(self, outcome: PricedPlan | Rejection, count: int = 1) -> None:
        """Counts a candidate by its outcome, and with it others that cannot run for the same reason."""
        if isinstance(outcome, PricedPlan):
            self.plans.append(outcome)
            return
        kind, family = (self.unfit if outcome.why == "memory" else self.refused), outcome.candidate.family
        before = kind.get(family, Rejected(0, outcome))
        least = min(before.least, outcome, key=lambda rejection: rejection.missing_bytes)
        kind[family] = Rejected(before.count + count, least)

    def of(self, family: str) -> list[PricedPlan]:
        """Plans of a family."""
        return [plan for plan in self.plans if plan.candidate.family == family]

    @property
    def candidates(self) -> int:
        """Number of all candidates."""
        return sum(self.tried.values())


class Stairs:
    """The front so far: the least cost of each time, quick to query."""

    def __init__(self) -> None:
        self._hours: list[float] = []
        self._cost: list[float] = []

    def beats(self, hours: float, cost: float) -> bool:
        """Whether some point is as fast and as cheap, and better in one."""
        at = bisect.bisect_right(self._hours, hours) - 1
        return at >= 0 and self._cost[at] <= cost and (self._cost[at] < cost or self._hours[at] < hours)

    def add(self, hours: float, cost: float) -> None:
        """Adds a point, and drops those that it beats."""
        if self.beats(hours, cost):
            return
        at = bisect.bisect_left(self._hours, hours)
        end = at
        while end < len(self._cost) and self._cost[end] >= cost:
            end += 1
        self._hours[at:end], self._cost[at:end] = [hours], [cost]


_COMPUTING = ("compute", "memory", "communication")
"""Parts of a step that neither more GPUs nor more micro-batches make smaller per micro-batch; others may be shared."""


class _Floor:
    """Lower bounds of hours and cost, from the micro-batch on as few GPUs as compute it together."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._known: dict[tuple[str, int, int, Strategy], float] = {}
        self._surely: dict[tuple[str, int], bool] = {}

    def alone(self, candidate: Candidate) -> tuple[float, float]:
        """The job if products were shared at no cost, and nothing recomputed."""
        tensor = candidate.strategy.tensor
        return self._job_of(candidate, self._micro_batch_s(candidate, Strategy()) / tensor)

    def together(self, candidate: Candidate) -> tuple[float, float]:
        """The job with the exchange among GPUs that share products, and recomputation."""
        strategy = candidate.strategy
        own = Strategy(tensor=strategy.tensor, recomputed=strategy.recomputed)
        return self._job_of(candidate, self._micro_batch_s(candidate, own))

    def may_be_calibrated(self, candidate: Candidate) -> bool:
        """Whether its GPU and its strategy may be calibrated."""
        if not is_measured(candidate.strategy, candidate.gpus):
            return False
        key = candidate.offer.gpu.name, candidate.micro_batch
        if key not in self._surely:
            few = Candidate(offer=candidate.offer, gpus=1, micro_batch=candidate.micro_batch, strategy=Strategy())
            self._surely[key] = self._job.predict(self._job.batches.at(few.micro_batch), few).tier == "calibrated"
        return self._surely[key]

    def _job_of(self, candidate: Candidate, micro_batch_s: float) -> tuple[float, float]:
        strategy = candidate.strategy
        passes = strategy.accumulation + strategy.pipeline - 1
        steps = -(-self._job.samples // candidate.global_batch)
        hours = micro_batch_s * passes / strategy.pipeline * steps / 3600
        return hours, hours * candidate.per_hour

    def _micro_batch_s(self, candidate: Candidate, strategy: Strategy) -> float:
        """Time that GPUs that share products compute on one micro-batch; 0 if unknown."""
        offer = candidate.offer
        key = (offer.gpu.name, offer.gpus if strategy.tensor > 1 else 1, candidate.micro_batch, strategy)
        if key not in self._known:
            few = Candidate(offer=offer, gpus=strategy.tensor, micro_batch=candidate.micro_batch, strategy=strategy)
            step = self._job.predict(self._job.batches.at(candidate.micro_batch), few)
            self._known[key] = sum(step.parts.get(name, 0.0) for name in _COMPUTING)
        return self._known[key]


class _Best:
    """The best known plans: of all, and of calibrated ones."""

    def __init__(self, floor: _Floor, limits: PlanLimits) -> None:
        self._floor, self._limits = floor, limits
        self._all, self._calibrated = Stairs(), Stairs()

    def add(self, plan: PricedPlan) -> None:
        """Adds a plan."""
        hours, cost = self._limits.hours(plan), self._limits.cost(plan)
        self._all.add(hours, cost)
        if plan.tier == "calibrated":
            self._calibrated.add(hours, cost)

    def beats(self, candidate: Candidate) -> bool:
        """Whether a candidate need not be priced."""
        stairs = self._calibrated if self._floor.may_be_calibrated(candidate) else self._all
        floors = [self._floor.alone] + [self._floor.together] * (candidate.strategy.tensor > 1)
        return any(stairs.beats(*(least / TIE for least in floor(candidate))) for floor in floors)


def search(space: Space, job: TrainingJob, limits: PlanLimits | None = None, known: Iterable[PricedPlan] = ()) -> Found:
    """The promising plans of a space.

    Candidates with the least hours x cost of computation come first: their prices soon rule out most others.
    Modules are recomputed if that lets a larger micro-batch fit.

    Args:
        space: to search.
        job: to run.
        limits: choose which figures are compared.
        known: further plans; candidates that these beat are not priced.
    """
    limits = limits or PlanLimits()
    found, floor = Found(), _Floor(job)
    known_best = _Best(floor, limits)
    for plan in known:
        known_best.add(plan)
    bounded: list[tuple[float, list[Candidate]]] = []
    for group in groups(space):
        family = group[0].family
        found.tried[family] = found.tried.get(family, 0) + len(group)
        bounded.append((min(math.prod(floor.alone(candidate)) for candidate in group), group))
    for _, group in sorted(bounded, key=lambda each: each[0]):
        _search(group, job, found, known_best)
    return found


def examples(space: Space, job: TrainingJob, found: Found) -> list[PricedPlan]:
    """A plan of each offer that has none yet, to show what beats it.

    Plain replicas, if they fit, on one GPU, on a server, and on all GPUs that may be taken.
    """
    shown = {plan.candidate.offer.name for plan in found.plans}
    offers = tuple(offer for offer in space.offers if offer.name not in shown)
    plans: dict[tuple[str, int], PricedPlan] = {}
    for group in groups(replace(space, offers=offers)):
        first = group[0]
        key = (first.offer.name, first.gpus)
        sizes = first.offer.counts(space.max_gpus)
        if key in plans or first.family not in _PLAIN or first.gpus not in (sizes[0], first.offer.gpus, sizes[-1]):
            continue
        for candidate in group:
            outcome = price(candidate, job)
            if isinstance(outcome, PricedPlan):
                plans[key] = outcome
                break
            if outcome.why == "refused":
                break
    return list(plans.values())


_PLAIN = ("1 GPU", "DDP in a server", "DDP over servers", "FSDP")


def _search(group: Sequence[Candidate], job: TrainingJob, found: Found, best: _Best) -> None:
    largest, recomputed = _descend(group, job, found, best), list[Candidate]()
    if largest < 0:
        return
    # What fits is not recomputed, and what is beaten as it is would be beaten with more to do.
    for candidate in group:
        if candidate.micro_batch > largest and not best.beats(candidate):
            changed = job.recomputed(candidate)
            if changed is None:
                found.add(price(candidate, job))
            else:
                recomputed.append(changed)
    _descend(recomputed, job, found, best)


def _descend(group: Sequence[Candidate], job: TrainingJob, found: Found, best: _Best) -> int:
    """Prices candidates that differ only in their micro-batch, until smaller ones are worse.

    Larger ones compute as much in fewer and larger pieces, and exchange no more often: the first that fits is the best.
    In a pipeline smaller ones leave stages less idle, and with recomputation less is repeated, up to a point.

    Returns:
        The largest micro-batch that fits; 0 if none does, -1 if there is no prediction.
    """
    largest, before, is_unfit = 0, math.inf, False
    for place, candidate in enumerate(group):
        strategy = candidate.strategy
        if best.beats(candidate):
            found.beaten[candidate.family] = found.beaten.get(candidate.family, 0) + 1
            continue
        outcome = price(candidate, job)
        if isinstance(outcome, PricedPlan):
            found.add(outcome)
            largest = max(largest, candidate.micro_batch)
            best.add(outcome)
            if (strategy.pipeline == 1 and not strategy.recomputed) or outcome.step_s.likely > before:
                break
            before = outcome.step_s.likely
        elif outcome.why == "refused":
            # If one size has no prediction, neither do the others.
            found.add(outcome, len(group) - place)
            return -1
        else:
            # Without recomputation this is not the last word.
            counts = bool(strategy.recomputed)
            if counts:
                found.add(outcome)
            if not is_unfit:
                # The last one needs least: if it does not fit either, none does.
                is_unfit, least = True, price(group[-1], job)
                if isinstance(least, Rejection) and least.why == "memory":
                    if counts:
                        found.add(least, len(group) - place - 1)
                    break
    return largest


def priced(all_of_them: Iterable[Candidate], job: TrainingJob) -> Found:
    """Prices all of these candidates."""
    found = Found()
    for candidate in all_of_them:
        found.tried[candidate.family] = found.tried.get(candidate.family, 0) + 1
        outcome = price(candidate, job)
        if isinstance(outcome, Rejection) and outcome.why == "memory":
            changed = job.recomputed(candidate)
            outcome = outcome if changed is None else price(changed, job)
        found.add(outcome)
    return found
