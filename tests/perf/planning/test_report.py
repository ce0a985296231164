"""The answer: what to take, why not the rest, what binds."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from stoker.perf.communication.step_on_cluster import is_measured
from stoker.perf.features.records import StepFeatures
from stoker.perf.planning.choosing import PlanLimits
from stoker.perf.planning.offers import Offer, PriceList, only, without_prices
from stoker.perf.planning.report import Question, answer
from stoker.perf.planning.space import FAMILIES, Candidate, Space
from stoker.perf.prediction.prediction import Prediction
from stoker.records.plan import PlanReport
from tests.perf.planning.toys import job, offer, seconds

OFFERS = (offer("T4", 1, 0.5), offer("T4", 8, 3.5), offer("H100-SXM", 8, 32.0))


def question(limits: PlanLimits | None = None, offers: tuple[Offer, ...] = OFFERS, **space: int | bool) -> Question:
    return Question(
        name="toy.py",
        job=job(samples=100_000_000),
        space=Space(**{"offers": offers, "batch": 64, "max_gpus": 8, **space}),  # type: ignore[arg-type]
        limits=limits or PlanLimits(),
        prices=PriceList(offers=offers, currency="USD", date="2026-01-31", source="ours"),
    )


def test_without_limits_it_names_the_cheapest_the_fastest_and_one_between() -> None:
    report = answer(question())
    assert [pick.role for pick in report.picks][:2] == ["cheapest", "fastest"]
    cheapest, fastest = (pick.plan for pick in report.picks[:2])
    assert fastest == report.front[0]
    assert cheapest == report.front[-1]
    assert all(pick.keeps for pick in report.picks)
    assert report.prices == "ours, 2026-01-31"
    assert report.miss is None
    assert [family.name for family in report.families] == list(FAMILIES)
    assert all(family.why or family.on_front for family in report.families)
    assert msgspec.json.decode(msgspec.json.encode(report), type=PlanReport) == report


def test_limits_bind_and_it_is_said_what_relaxing_them_buys() -> None:
    free = answer(question())
    hours = [plan.hours.likely for plan in free.front]
    cost = [plan.cost.likely for plan in free.front]
    assert len(hours) >= 2
    tight = answer(question(PlanLimits(deadline_h=(hours[-1] + hours[-2]) / 2, budget=(cost[0] + cost[1]) / 2)))
    said = " ".join(tight.advice)
    assert "The deadline binds" in said
    assert "The budget binds" in said


def test_where_no_plan_keeps_both_the_nearest_comes_first() -> None:
    free = answer(question())
    limits = PlanLimits(deadline_h=free.front[0].hours.likely * 1.01, budget=free.front[-1].cost.likely * 1.01)
    report = answer(question(limits))
    nearest = report.picks[0]
    assert nearest.role.startswith("nearest to both limits")
    assert not nearest.keeps
    assert any("beyond the" in remark for remark in nearest.remarks)


def test_more_gpus_are_advised_where_they_are_faster() -> None:
    report = answer(question(offers=(offer("T4", 8, 3.5),)))
    assert report.front[0].gpus == 8
    assert any("--max-gpus 8 binds: with 16 GPUs" in line for line in report.advice)


def test_where_nothing_fits_it_says_what_lacks_and_what_would_do() -> None:
    small = replace(OFFERS[0], gpu=replace(OFFERS[0].gpu, memory_bytes=0.3e9))
    report = answer(question(offers=(replace(small, gpus=8),), max_gpus=1))
    assert not report.front
    assert report.miss is not None
    assert report.miss.missing_bytes == pytest.approx(1e9 + 0.1e9 - 0.3e9)
    assert report.miss.remedies[0] == "GPUs with 1.1 GB of memory"
    assert any("--max-gpus" in remedy for remedy in report.miss.remedies)


def test_a_space_without_candidates_is_an_answer_too() -> None:
    report = answer(replace(question(), space=Space(offers=(), batch=64)))
    assert report.candidates == 0
    assert not report.picks
    assert report.miss is None


def test_families_that_cannot_be_say_why() -> None:
    why = {family.name: family.why for family in answer(question(max_gpus=8)).families}
    assert why["PEARL"] == "the program has no embedding tables to partition"
    assert why["DDP over servers"] != ""
    alone = {family.name: family.why for family in answer(question(max_gpus=1)).families}
    assert alone["FSDP"] == "one GPU at most (--max-gpus)"


def test_what_changes_with_the_batch_is_said() -> None:
    assert any("learning rate" in note for note in answer(question()).notes)
    grown = answer(question(grows=True))
    assert "grows with the GPUs" in grown.batch
    assert any("learning rate" in note for note in grown.notes)


def test_gpu_hours_are_counted_where_there_are_no_prices() -> None:
    prices = without_prices()
    report = answer(replace(question(offers=only(prices, ["T4", "A10"]).offers), prices=prices))
    assert not report.is_money
    for plan in report.front:
        assert plan.cost.likely == pytest.approx(plan.hours.likely * plan.gpus), "unused GPUs of a server cost nothing"
    assert report.prices.startswith("none given")


@pytest.mark.parametrize(("host_s", "is_said"), [(0.0, False), (1.0, True)])
def test_a_step_that_waits_for_its_host_is_noted(host_s: float, is_said: bool) -> None:
    def slow_host(found: StepFeatures, candidate: Candidate) -> Prediction:
        plain = seconds(found, candidate)
        longer = plain.seconds + host_s
        return replace(plain, seconds=longer, high=2 * longer, parts={**plain.parts, "host": host_s})

    notes = answer(replace(question(), job=replace(job(), predict=slow_host))).notes
    assert any("GPUs wait for the host" in note for note in notes) == is_said


def test_a_plan_that_nobody_measured_heads_no_screen_over_one_within_its_interval() -> None:
    """The unmeasured ones promise a third less, in an interval that reaches half beyond."""

    def promising(found: StepFeatures, candidate: Candidate) -> Prediction:
        plain = seconds(found, candidate)
        return plain if candidate.offer.gpu.name == "H100-SXM" else replace(plain, tier="calibrated")

    def plainly(found: StepFeatures, candidate: Candidate) -> str:
        return "" if is_measured(candidate.strategy, candidate.gpus) else "not asked about"

    offers = (offer("A100-80GB-SXM", 8, 20.0), offer("H100-SXM", 8, 40.0))
    asked = question(PlanLimits(deadline_h=10), offers=offers)
    report = answer(replace(asked, job=replace(asked.job, predict=promising, refuses=plainly)))
    head = report.picks[0]
    assert (head.plan.gpu, head.plan.tier) == ("A100-80GB-SXM", "calibrated")
    assert head.role == "cheapest within 10 h, of those that were measured"
    dream = next(pick for pick in report.picks if pick.role.startswith("cheapest") and pick is not head)
    assert dream.plan.tier == "extrapolated"
    assert head.plan.cost.likely / 1.5 < dream.plan.cost.likely < head.plan.cost.likely


def test_a_trillion_samples_are_only_a_long_time() -> None:
    report = answer(replace(question(), job=job(samples=10**12)))
    assert report.front[0].steps == 10**12 // 64
