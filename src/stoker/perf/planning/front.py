"""Which plans are worth a look: those that no other beats in both time and money; and which of them to take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.perf.planning.pricing import TIERS, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the job may take.

    Attributes:
        budget: in the currency of the offers; infinite where there is none.
        deadline_h: in hours; infinite where there is none.
        sure: whether the upper ends of the intervals must keep them, rather than what is most likely.
    """

    budget: float = math.inf
    deadline_h: float = math.inf
    sure: bool = False

    def __post_init__(self) -> None:
        for name in ("budget", "deadline_h"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")

    def hours(self, plan: Plan) -> float:
        """What is compared with the deadline."""
        return plan.hours.high if self.sure else plan.hours.likely

    def cost(self, plan: Plan) -> float:
        """What is compared with the budget."""
        return plan.cost.high if self.sure else plan.cost.likely

    def allow(self, plan: Plan) -> bool:
        """Whether a plan keeps both."""
        return self.hours(plan) <= self.deadline_h and self.cost(plan) <= self.budget

    def excess(self, plan: Plan) -> float:
        """How many times a plan takes what it may, by the limit that it breaks more; at most 1 where it keeps both."""
        return max(self.hours(plan) / self.deadline_h, self.cost(plan) / self.budget)


def front(plans: Iterable[Plan], limits: Limits | None = None) -> list[Plan]:
    """Plans that no other beats: none is both as fast and as cheap. The fastest first.

    Of plans that are equal in both, the surer tier stays, then the one with fewer GPUs. Takes O(n log n).

    Args:
        plans: in any order.
        limits: whose figures are compared; what is most likely by default.
    """
    limits = limits or Limits()
    ordered = sorted(plans, key=lambda plan: (limits.hours(plan), limits.cost(plan), _preference(plan)))
    found: list[Plan] = []
    least = math.inf
    for plan in ordered:
        if limits.cost(plan) < least:
            least = limits.cost(plan)
            found.append(plan)
    return found


def _preference(plan: Plan) -> tuple[int, int, int]:
    """Of equals, the smaller: surer, fewer GPUs, less exotic."""
    strategy = plan.candidate.strategy
    return TIERS.index(plan.tier), plan.candidate.gpus, strategy.tensor * strategy.pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to take of a front.

    Attributes:
        cheapest: within the deadline; None where nothing is.
        fastest: within the budget; None where nothing is.
        nearest: to both limits, where no plan keeps both; None where one does.
    """

    cheapest: Plan | None
    fastest: Plan | None
    nearest: Plan | None


def choose(found: Sequence[Plan], limits: Limits) -> Choice:
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
    return Choice(cheapest=cheapest, fastest=fastest, nearest=nearest)
