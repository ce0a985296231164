"""The choice with a trace that disagrees with what is predicted: what fits once fits with more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.perf.memory.choice.certifying import CertifiedChoice, Certify, RefusedPlan
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.choice.offloading import HostLink
from stoker.records.fitting import FitPlan
from tests.perf.memory.choice.test_offloading import QUICK, SLOW, kinds, plain_peak, question

LEAST = plan_fit(question(1000, None)).peak_bytes
LEAST_WITH_HOST = plan_fit(question(1000, QUICK)).peak_bytes


def uses_host(plan: FitPlan) -> bool:
    return bool(kinds(plan) & {"offload", "states_away"})


def certified_as(peaks: tuple[float, float], beyond: tuple[int, int], seen: list[FitPlan]) -> Certify:
    """A trace that is so much above what is predicted, without and with host memory."""

    def certify(asked: FitQuestion, plan: FitPlan) -> FitPlan:
        host = uses_host(plan)
        seen.append(plan)
        peak = int(peaks[host] * plan.peak_bytes) + beyond[host]
        return replace(plan, peak_bytes=peak, lacks_bytes=max(0, peak - asked.budget), certified=True)

    return certify


factors = st.floats(0.9, 1.5)
bytes_beyond = st.integers(0, 50_000)


@pytest.mark.slow("plans are made for two budgets, up to ten times each")
@settings(max_examples=15)
@given(
    share=st.floats(0.3, 1.0), more=st.floats(0.0, 0.3), peaks=st.tuples(factors, factors),
    beyond=st.tuples(bytes_beyond, bytes_beyond), link=st.sampled_from((None, SLOW, QUICK)), last=st.booleans(),
)  # fmt: skip
def test_more_budget_never_turns_a_fit_into_a_refusal(
    share: float, more: float, peaks: tuple[float, float], beyond: tuple[int, int], link: HostLink | None, last: bool
) -> None:
    # Of plans that are priced together, one factor: which of two takes less is then what it is predicted to be.
    if not last:
        peaks, beyond = (peaks[0], peaks[0]), (beyond[0], beyond[0])
    plans: list[FitPlan] = []
    for part in (share, share + more):
        seen: list[FitPlan] = []
        asked = question(int(part * plain_peak()), link, last=last)
        plan = CertifiedChoice(asked, certified_as(peaks, beyond, seen)).plan()
        assert plan.fits is (plan.peak_bytes <= asked.budget)
        assert len(seen) <= 10, "a trace takes seconds"
        assert not plan.measures or plan.certified
        plans.append(plan)
    assert plans[1].fits or not plans[0].fits


def test_without_disagreement_the_first_plan_is_taken() -> None:
    seen: list[FitPlan] = []
    asked = question(int(0.7 * plain_peak()), QUICK, last=True)
    plan = CertifiedChoice(asked, certified_as((1.0, 1.0), (0, 0), seen)).plan()
    assert len(seen) == 1
    assert plan.measures == plan_fit(asked).measures


def test_host_memory_is_taken_where_plans_without_it_are_not_what_they_promise() -> None:
    """As a program that is predicted to fit by recomputation, and traces above it again and again."""
    budget = int(1.05 * LEAST)
    seen: list[FitPlan] = []
    plan = CertifiedChoice(question(budget, QUICK, last=True), certified_as((1.2, 1.0), (0, 0), seen)).plan()
    assert plan.fits
    assert uses_host(plan)
    assert not uses_host(seen[0])
    assert any(not uses_host(each) and each.peak_bytes == LEAST for each in seen), "the least without it was tried"
    naive = plan_fit(question(budget, QUICK, last=True))
    assert not uses_host(naive), "by prediction alone it is never asked"


def test_a_plan_that_misses_by_less_than_its_interval_is_traced_before_host_memory_is_asked() -> None:
    """As a program whose least plan is predicted some hundred bytes above the budget, and traces below it."""
    seen: list[FitPlan] = []
    asked = question(LEAST - 100, QUICK, last=True)
    plan = CertifiedChoice(asked, certified_as((0.9995, 1.0), (0, 0), seen)).plan()
    assert plan.fits
    assert not uses_host(plan)
    assert len(seen) == 1
    above = CertifiedChoice(asked, certified_as((1.0, 1.0), (0, 0), [])).plan()
    assert above.fits
    assert uses_host(above), "where the trace is no lower than the prediction"
    far = question(int(0.99 * LEAST), QUICK, last=True)
    assert uses_host(CertifiedChoice(far, certified_as((0.5, 1.0), (0, 0), [])).plan())


def test_host_memory_that_is_last_waits_for_the_least_plan_without_it() -> None:
    budget = int(1.1 * LEAST)
    plan = CertifiedChoice(question(budget, QUICK, last=True), certified_as((1.08, 1.0), (0, 0), [])).plan()
    assert plan.fits
    assert not uses_host(plan)


def test_the_nearest_of_all_that_were_traced_is_told() -> None:
    seen: list[FitPlan] = []
    plan = CertifiedChoice(
        question(LEAST_WITH_HOST // 2, QUICK, last=True), certified_as((1.0, 1.0), (7, 7), seen)
    ).plan()
    assert not plan.fits
    assert plan.certified
    assert plan.peak_bytes == min(each.peak_bytes for each in seen) + 7
    assert all(uses_host(each) for each in seen), "what is predicted not to fit without it is not traced"


@pytest.mark.parametrize("host", [False, True])
def test_a_refused_measure_is_left_out_and_one_that_says_nothing_new_ends_it(host: bool) -> None:
    asked = question(int(1.05 * LEAST), QUICK if host else None, last=host)
    seen: list[FitPlan] = []

    def refuses(asked: FitQuestion, plan: FitPlan) -> FitPlan | RefusedPlan:
        seen.append(plan)
        if "recompute" in kinds(plan):
            return RefusedPlan(barred={"recompute": "it does not run"})
        return replace(plan, certified=True)

    choice = CertifiedChoice(asked, refuses)
    plan = choice.plan()
    assert "recompute" in kinds(seen[0])
    assert all("recompute" not in kinds(each) for each in seen[1:])
    assert choice.question.barred["recompute"] == "it does not run"
    assert "recompute" not in kinds(plan)
    assert plan.certified is (len(seen) > 1)
    again: list[FitPlan] = []

    def says_nothing(asked: FitQuestion, plan: FitPlan) -> RefusedPlan:
        again.append(plan)
        return RefusedPlan()

    plan = CertifiedChoice(asked, says_nothing).plan()
    assert len(again) <= 2
    assert not plan.fits
    assert not plan.measures
    assert plan.lacks_bytes == plan.plain_bytes - asked.budget
