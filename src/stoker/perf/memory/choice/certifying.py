"""The choice with a trace of its form: a plan is what it promises, or another one is asked for; pure but for the trace.

A trace may be above what was predicted, by some bytes or by much. So each plan after the first has as much less to
choose from, and the last one is the least that there is: more budget never turns what fits into what does not, as long
as of two plans the one that is predicted to take less does so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec.structs

from stoker.perf.memory.choice.fitting import INTERVAL_FRAC, FitQuestion, plan_fit
from stoker.records.fitting import FitPlan

_ROUNDS = 4
"""Plans that are traced with less and less to choose from, before the least one (assumed: a trace takes seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPlan:
    """A plan that cannot be traced in its form.

    Attributes:
        barred: kinds of measures that do not work, with the reason.
        without: modules to which nothing can be done, with the reason.
    """

    barred: Mapping[str, str] = field(default_factory=dict[str, str])
    without: Mapping[str, str] = field(default_factory=dict[str, str])


Certify = Callable[[FitQuestion, FitPlan], FitPlan | RefusedPlan]
"""Traces a plan for a question: the plan with the peak of its trace, or why there is none."""


class CertifiedChoice:
    """Plans for a question until one is certified.

    Args:
        question: to answer.
        certify: traces a plan.
    """

    def __init__(self, question: FitQuestion, certify: Certify) -> None:
        self.question = question
        """With all that turned out not to work."""
        self._certify = certify
        self._nearest: FitPlan | None = None

    def plan(self) -> FitPlan:
        """The quickest plan that is certified to fit; else the one with the least certified peak.

        Where host memory is last, plans without it are all tried before.
        """
        question = self.question
        stages = (False, True) if question.host_is_last and question.link is not None else (True,)
        margin = 0
        for host in stages:
            found = self._in_rounds(margin, host, is_final=host is stages[-1])
            if found is not None:
                return found
            # What comes next takes less than the least of these.
            least = plan_fit(self.question, margin=question.budget, host=host).peak_bytes
            margin = max(margin, question.budget - least + 1)
        return self._nearest or self._as_it_is()

    def _as_it_is(self) -> FitPlan:
        """The program without measures, of which none could be traced."""
        plan = plan_fit(self.question)
        return msgspec.structs.replace(
            plan, peak_bytes=plan.plain_bytes, step_s=plan.plain_step_s, measures=(),
            lacks_bytes=max(0, plan.plain_bytes - plan.budget_bytes),
        )  # fmt: skip

    def _in_rounds(self, margin: int, host: bool, is_final: bool) -> FitPlan | None:
        """A plan that is certified to fit, with less and less to choose from, the least one last."""
        before: int | None = None
        rounds = 0
        while True:
            is_last = rounds == _ROUNDS
            plan = plan_fit(self.question, margin=self.question.budget if is_last else margin, host=host)
            if not plan.measures:
                return plan if plan.fits else None
            # What misses by less than a prediction is off may fit after all: its trace tells.
            is_near = plan.lacks_bytes <= INTERVAL_FRAC * self.question.budget
            if not (is_near or is_final):
                return None
            answer = self._certify(self.question, plan)
            if isinstance(answer, RefusedPlan):
                if not self._learns(answer):
                    return None
                continue
            if answer.fits:
                return answer
            if self._nearest is None or answer.peak_bytes < self._nearest.peak_bytes:
                self._nearest = answer
            if is_last or plan.peak_bytes > self.question.budget - margin:
                return None  # there is none that takes less
            falls = before is None or answer.peak_bytes < before
            rounds, before = rounds + 1 if falls else _ROUNDS, answer.peak_bytes
            margin = max(margin, self.question.budget - plan.peak_bytes) + answer.lacks_bytes

    def _learns(self, refused: RefusedPlan) -> bool:
        """Whether a refusal says something new; if so, the question knows it from now on."""
        question = self.question
        self.question = replace(
            question, barred={**question.barred, **refused.barred}, without={**question.without, **refused.without}
        )
        return self.question != question
