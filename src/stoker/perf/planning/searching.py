"""Prices the candidates of a space, and keeps why others cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stoker.perf.planning.pricing import Job, Plan, Rejection, price
from stoker.perf.planning.space import Candidate, Space, groups


@dataclass(slots=True)
class Found:
    """What a search has found.

    Attributes:
        plans: all that can run.
        tried: candidates by family.
        unfit: of each family, the candidates that do not fit; the first lacks least.
        refused: of each family, the candidates without a prediction.
    """

    plans: list[Plan] = field(default_factory=list[Plan])
    tried: dict[str, int] = field(default_factory=dict[str, int])
    unfit: dict[str, list[Rejection]] = field(default_factory=dict[str, list[Rejection]])
    refused: dict[str, list[Rejection]] = field(default_factory=dict[str, list[Rejection]])

    def add(self, outcome: Plan | Rejection) -> None:
        """Puts a candidate where it belongs."""
        if isinstance(outcome, Plan):
            self.plans.append(outcome)
        else:
            kind = self.unfit if outcome.why == "memory" else self.refused
            kind.setdefault(outcome.candidate.family, []).append(outcome)

    def ordered(self) -> Found:
        """The same, what lacks least memory first."""
        for rejections in self.unfit.values():
            rejections.sort(key=lambda rejection: rejection.missing_bytes)
        return self

    def of(self, family: str) -> list[Plan]:
        """Plans of a family."""
        return [plan for plan in self.plans if plan.candidate.family == family]

    @property
    def candidates(self) -> int:
        """All that were tried."""
        return sum(self.tried.values())


def search(space: Space, job: Job) -> Found:
    """What is best of a space.

    Of candidates that differ in their micro-batch alone the largest comes first, none is looked at below the size at
    which steps grow slower; checkpointing is tried only where it lets a larger one fit. :func:`priced` over all
    candidates finds the same front, as the benchmark ``plan_quality`` checks.
    """
    found = Found()
    for group in groups(space):
        family = group[0].family
        found.tried[family] = found.tried.get(family, 0) + len(group)
        _search(group, job, found)
    return found.ordered()


def _search(group: Sequence[Candidate], job: Job, found: Found) -> None:
    fits = 0
    for checkpointing in (False, True):
        before = math.inf
        for candidate in group:
            if candidate.strategy.checkpointing != checkpointing:
                continue
            if checkpointing and candidate.micro_batch <= fits:
                break
            outcome = price(candidate, job)
            found.add(outcome)
            if isinstance(outcome, Plan):
                fits = max(fits, candidate.micro_batch)
                if outcome.step_s.likely > before:
                    break
                before = outcome.step_s.likely
            elif outcome.why == "refused":
                # What is not known of one size is not known of the others.
                return


def priced(all_of_them: Iterable[Candidate], job: Job) -> Found:
    """All of some candidates."""
    found = Found()
    for candidate in all_of_them:
        found.tried[candidate.family] = found.tried.get(candidate.family, 0) + 1
        found.add(price(candidate, job))
    return found.ordered()
