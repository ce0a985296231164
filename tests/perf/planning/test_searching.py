"""A search prices few candidates and finds the front of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.perf.planning.choosing import PlanLimits, front
from stoker.perf.planning.pricing import PricedPlan, Rejection, price
from stoker.perf.planning.searching import Stairs, examples, priced, search
from stoker.perf.planning.space import Candidate, Space, candidates
from stoker.perf.prediction.prediction import Prediction, refused
from stoker.perf.strategy import Strategy
from tests.perf.planning.toys import job, offer, seconds

OFFERS = (offer("T4", 1, 0.5), offer("T4", 8, 3.5), offer("A100-40GB-SXM", 8, 16.0), offer("H100-SXM", 8, 32.0))
PLACES = st.lists(st.integers(0, len(OFFERS) - 1), min_size=1, unique=True)


def figures(plans: list[PricedPlan], limits: PlanLimits | None = None) -> list[tuple[float, float]]:
    limits = limits or PlanLimits()
    return [(limits.hours(plan), limits.cost(plan)) for plan in front(plans, limits)]


@settings(deadline=None, max_examples=30)
@given(PLACES, st.sampled_from([1, 12, 64, 100, 512]), st.sampled_from([1, 8, 32]), st.booleans(), st.booleans())
def test_the_front_of_a_search_is_that_of_all_candidates(
    places: list[int], batch: int, max_gpus: int, grows: bool, sure: bool
) -> None:
    space = Space(offers=tuple(OFFERS[place] for place in places), batch=batch, max_gpus=max_gpus, grows=grows)
    limits = PlanLimits(sure=sure)
    everything, found = priced(candidates(space), job()), search(space, job(), limits)
    assert figures(found.plans, limits) == figures(everything.plans, limits)
    assert found.tried == everything.tried
    assert len(found.plans) <= len(everything.plans)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.001, 1000.0))
def test_other_prices_at_the_same_ratio_leave_the_front_as_it_is(times: float) -> None:
    space = Space(offers=OFFERS, batch=64, max_gpus=16)
    dearer = replace(space, offers=tuple(replace(each, per_hour=each.per_hour * times) for each in OFFERS))

    def machines(where: Space) -> list[tuple[str, int, Strategy, int]]:
        best = front(search(where, job()).plans)
        return [(p.candidate.offer.name, p.candidate.gpus, p.candidate.strategy, p.candidate.micro_batch) for p in best]

    assert machines(space) == machines(dearer)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=60))
def test_stairs_know_what_is_beaten(points: list[tuple[int, int]]) -> None:
    stairs, seen = Stairs(), []
    for hours, cost in points:
        beaten = any(h <= hours and c <= cost and (h, c) != (hours, cost) for h, c in seen)
        assert stairs.beats(hours, cost) == beaten
        stairs.add(hours, cost)
        seen.append((hours, cost))


def test_what_does_not_fit_says_how_much_is_missing() -> None:
    candidate = Candidate(offer=OFFERS[0], gpus=1, strategy=Strategy(), micro_batch=64)
    outcome = price(candidate, job())
    assert isinstance(outcome, Rejection)
    assert outcome.missing_bytes == pytest.approx(1e9 + 32e9 - 16e9)
    space = Space(offers=OFFERS[:1], batch=512, max_gpus=1)
    found = search(space, job())
    # 256 samples, recomputed, are the fewest that do not fit.
    assert found.unfit["1 GPU"].least.missing_bytes == pytest.approx(1e9 + 256 * 0.1e9 - 16e9)
    assert found.unfit["1 GPU"].count + len(found.plans) + found.beaten.get("1 GPU", 0) <= found.tried["1 GPU"]


def test_a_refused_kind_is_asked_for_once() -> None:
    asked: list[Candidate] = []

    def refusing(features: object, candidate: Candidate) -> Prediction:
        if candidate.strategy.tensor == 1:
            return seconds(features, candidate)  # type: ignore[arg-type]
        asked.append(candidate)
        return refused("no blocks here")

    space = Space(offers=(offer("H100-SXM", 8),), batch=64, max_gpus=8)
    found = search(space, replace(job(), predict=refusing))
    assert found.refused["tensor parallel"].least.reasons == ("no blocks here",)
    floors = [c for c in asked if c.gpus == c.strategy.tensor]
    spreads = [(c.gpus, c.strategy.tensor, c.strategy.pipeline, c.strategy.data) for c in asked if c not in floors]
    assert len(spreads) == len(set(spreads))


def test_offers_that_are_beaten_unseen_get_an_example() -> None:
    space = Space(offers=(offer("H100-SXM", 8, 1.0), offer("T4", 8, 50.0)), batch=64, max_gpus=16)
    found = search(space, job())
    assert {plan.candidate.offer.gpu.name for plan in found.plans} == {"H100-SXM"}
    shown = examples(space, job(), found)
    assert {plan.candidate.offer.gpu.name for plan in shown} == {"T4"}
    assert [plan.candidate.gpus for plan in shown] == [1, 8, 16]


def test_too_few_cores_make_steps_wait_for_input() -> None:
    few, many = (
        Candidate(offer=offer("H100-SXM", 8, 1.0, cores), gpus=8, strategy=Strategy(), micro_batch=8)
        for cores in (8.0, 80000.0)
    )
    slow, fast = (price(each, job(cpu_seconds_per_sample=0.05)) for each in (few, many))
    assert isinstance(slow, PricedPlan)
    assert isinstance(fast, PricedPlan)
    assert slow.step_s.likely == pytest.approx(64 * 0.05 / 8)
    assert slow.parts["input"] == pytest.approx(slow.step_s.likely - fast.step_s.likely)
    assert slow.cores == pytest.approx(8)
    assert fast.cores == pytest.approx(64 * 0.05 / fast.step_s.likely)
    assert sum(slow.parts.values()) == pytest.approx(slow.step_s.likely)
