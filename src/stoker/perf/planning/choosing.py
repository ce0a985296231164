"""The plans worth a look, which no other beats in both time and money; and which of them to take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.core import pareto
from stoker.perf.communication.step_on_cluster import is_measured
from stoker.perf.planning.pricing import TIERS, PricedPlan

TIE = 1.05
"""Plans that are closer than this in hours and in cost count as equal: calibrated ones are off by more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """Limits of the job.

    Attributes:
        budget: in the currency of the offers; infinite for none.
        deadline_h: in hours; infinite for none.
        sure: whether the upper ends of the intervals must meet them, not just the likely values.
    """

    budget: float = math.inf
    deadline_h: float = math.inf
    sure: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "deadline_h"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")

    def hours(self, plan: PricedPlan) -> float:
        """Hours to compare with the deadline."""
        return plan.hours.high if self.sure else plan.hours.likely

    def cost(self, plan: PricedPlan) -> float:
        """Cost to compare with the budget."""
        return plan.cost.high if self.sure else plan.cost.likely

    def allow(self, plan: PricedPlan) -> bool:
        """Whether a plan keeps both limits."""
        return self.hours(plan) <= self.deadline_h and self.cost(plan) <= self.budget

    def excess(self, plan: PricedPlan) -> float:
        """The larger ratio of a plan's hours and cost to their limits; at most 1 if it keeps both."""
        return max(self.hours(plan) / self.deadline_h, self.cost(plan) / self.budget)


def front(plans: Iterable[PricedPlan], limits: PlanLimits | None = None) -> list[PricedPlan]:
    """Plans that no other beats in both time and cost, fastest first.

    Of plans equal in both, the surer tier stays, then the one with fewer GPUs.

    Args:
        plans: in any order.
        limits: whose figures are compared; likely values by default.
    """
    compared = limits or PlanLimits()
    return pareto.front(plans, lambda plan: (compared.hours(plan), compared.cost(plan)), _preference)


def _preference(plan: PricedPlan) -> tuple[int, bool, int, int]:
    """Order of equal plans: surer, simpler, fewer GPUs."""
    return *_standing(plan), plan.candidate.gpus


def _standing(plan: PricedPlan) -> tuple[int, bool, int]:
    """How sure a plan is, whether its kind was ever measured, and how much it needs beyond plain replicas."""
    strategy, candidate = plan.candidate.strategy, plan.candidate
    replicated = candidate.replicas == 1 or strategy.data == "ddp"
    more = (not replicated, strategy.tensor > 1, strategy.pipeline > 1, bool(strategy.recomputed))
    return TIERS.index(plan.tier), not is_measured(strategy, candidate.gpus), sum(more)


def settled(
    best: Sequence[PricedPlan], plans: Sequence[PricedPlan], limits: PlanLimits | None = None
) -> list[PricedPlan]:
    """A front on which ties are won by the surer plan, then by the simpler one.

    Args:
        best: the front of the plans.
        plans: all of them.
        limits: whose figures are compared; a plan that keeps one of them gives way only to one that keeps it too.
    """
    limits = limits or PlanLimits()
    return front((_winner(plan, plans, limits) for plan in best), limits)


def _winner(plan: PricedPlan, plans: Iterable[PricedPlan], limits: PlanLimits) -> PricedPlan:
    """The surest and simplest of the plans that are as good as one within a tie."""
    hours, cost = limits.hours(plan), limits.cost(plan)
    most_hours, most_cost = TIE * hours, TIE * cost
    if hours <= limits.deadline_h:
        most_hours = min(most_hours, limits.deadline_h)
    if cost <= limits.budget:
        most_cost = min(most_cost, limits.budget)
    tied = (each for each in plans if limits.hours(each) <= most_hours and limits.cost(each) <= most_cost)
    return min((plan, *tied), key=lambda each: (_standing(each), limits.hours(each) * limits.cost(each)))


def measured_instead(plan: PricedPlan, plans: Iterable[PricedPlan], limits: PlanLimits) -> PricedPlan | None:
    """For an extrapolated plan, the calibrated one that its interval cannot distinguish from it.

    The cheapest whose cost lies in the interval, and its hours before the deadline or in the interval; it keeps both
    limits if the plan does.

    Returns:
        None if the plan is calibrated itself, or there is none.
    """
    if plan.tier == "calibrated":
        return None
    keeps = limits.allow(plan)
    most_hours = limits.deadline_h if keeps and math.isfinite(limits.deadline_h) else plan.hours.high
    inside = [
        each
        for each in plans
        if each.tier == "calibrated"
        and each.hours.likely <= most_hours
        and each.cost.likely <= plan.cost.high
        and (limits.allow(each) or not keeps)
    ]
    return min(inside, key=limits.cost if keeps else limits.excess, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The plans to choose from a front.

    Attributes:
        cheapest: within the deadline; None if there is none.
        fastest: within the budget; None if there is none.
        nearest: to both limits, if no plan keeps both; else None.
    """

    cheapest: PricedPlan | None
    fastest: PricedPlan | None
    nearest: PricedPlan | None


def choose(found: Sequence[PricedPlan], limits: PlanLimits) -> Recommendation:
    """The cheapest plan within the deadline, the fastest within the budget, the nearest miss.

    Args:
        found: a front by the same limits, the fastest first.
        limits: of the job.
    """
    in_time = [plan for plan in found if limits.hours(plan) <= limits.deadline_h]
    affordable = [plan for plan in found if limits.cost(plan) <= limits.budget]
    # Along the front cost falls as hours grow.
    cheapest, fastest = (in_time[-1] if in_time else None), (affordable[0] if affordable else None)
    keeps = cheapest is not None and limits.allow(cheapest)
    nearest = None if keeps or not found else min(found, key=limits.excess)
    return Recommendation(cheapest=cheapest, fastest=fastest, nearest=nearest)
