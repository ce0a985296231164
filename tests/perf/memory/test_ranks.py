"""Ways for ranks to share what a program holds: what a rank has then, what is exchanged, and the choice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec.structs
import pytest

from stoker.perf.communication.links import stated
from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline
from stoker.perf.memory.choice.fitting import FitQuestion, taken_of
from stoker.perf.memory.ranks import (
    DDP,
    STAGES,
    ZERO1,
    RankWay,
    chosen,
    exchange_s,
    facts_of,
    gather_bytes,
    in_order,
    of_rank,
    ranked,
    way_of,
    ways_of,
    worth_certifying,
)
from stoker.records.fitting import FitMeasure, FitPlan, RejectedFit, StageFlow, TracedModel

MB = 1 << 20


def life(size: int, birth: int, death: int, category: str, phase: str, module: str) -> BufferLife:
    return BufferLife(size * MB, birth, death, -1, category, phase, module, "train.py:1")  # type: ignore[arg-type]


def timeline() -> MemoryTimeline:
    """Two blocks of 4 and 2 MB, AdamW, and activations that are gone before the optimizer's step."""
    buffers = (
        life(4, 0, 90, "parameters", "forward", "blocks.0"),
        life(2, 1, 90, "parameters", "forward", "blocks.1"),
        life(8, 2, 90, "optimizer", "optimizer", ""),
        life(4, 3, 90, "optimizer", "optimizer", ""),
        life(5, 11, 50, "activations", "forward", "blocks.0"),
        life(4, 40, 80, "gradients", "backward", "blocks.0"),
        life(2, 41, 80, "gradients", "backward", "blocks.1"),
        life(6, 60, 70, "temporaries", "optimizer", ""),
    )
    calls = (
        CallInTime(12, "addmm", "gemm", "forward", "blocks.0", 0.0, 0.1),
        CallInTime(39, "mm", "gemm", "backward", "blocks.1", 0.0, 0.2),
        CallInTime(60, "_foreach_mul", "pointwise", "optimizer", "", 0.0, 0.1),
    )
    return MemoryTimeline(name="p", target="cpu", batch_size=1, begin=10, end=90, buffers=buffers, calls=calls)


def peak(found: MemoryTimeline) -> int:
    return taken_of(found, emulated=True, expandable=False)


def test_ddp_holds_copies_of_gradients_and_zero1_a_share_of_states_and_of_their_temporaries() -> None:
    plain, facts = timeline(), facts_of(timeline())
    assert facts.weights == (0, 4 * MB, 2 * MB)
    assert peak(plain) == (6 + 12 + 6 + 6) * MB
    assert peak(of_rank(plain, facts, 2, DDP)) == peak(plain) + 6 * MB
    # States and temporaries in halves; the peak is the backward pass then, with its activations.
    assert peak(of_rank(plain, facts, 2, ZERO1)) == (6 + 6 + 6 + 6 + 5) * MB
    assert gather_bytes(8 * MB, 2) == MB // 2 * 3
    assert gather_bytes(1000, 2) == 500 * 3
    assert gather_bytes(600 * MB, 4) == 2 * MB * 5


def test_the_exchange_of_zero1_is_that_of_ddp_and_a_gathering() -> None:
    facts, link = facts_of(timeline()), stated(1e9, 1e-5)
    more_s = exchange_s(facts, 2, ZERO1, link) - exchange_s(facts, 2, DDP, link)
    assert more_s == pytest.approx(6 * MB / 2 / link.bandwidth, rel=0.05)


def plan(peak_bytes: int, added_s: float, kind: str = "recompute") -> FitPlan:
    measures = (FitMeasure(kind=kind, added_s=added_s),)  # type: ignore[arg-type]
    return FitPlan(
        name="p", budget_bytes=30 * MB, device="d", ranks=2, plain_bytes=36 * MB, plain_step_s=1.0,
        peak_bytes=peak_bytes, step_s=1.0 + added_s, measures=measures, lacks_bytes=max(0, peak_bytes - 30 * MB),
    )  # fmt: skip


def test_the_link_decides_between_computing_again_and_sharing() -> None:
    facts = facts_of(timeline())
    plans = {DDP: plan(29 * MB, 0.02), ZERO1: plan(29 * MB, 0.0, "zero1")}
    fits = ranked(plans, facts)
    fast, slow = chosen(fits, stated(1e10, 1e-5)), chosen(fits, stated(1e7, 1e-5))
    assert [each.kind for each in fast.measures] == ["zero1"]
    assert [each.kind for each in slow.measures] == ["recompute"]
    assert fast.rejected[0].reason == "it is slower"
    assert (fast.measures[0].added_s or 0) > 0
    assert fast.step_s == pytest.approx(1.0 + exchange_s(facts, 2, ZERO1, stated(1e10, 1e-5)))
    assert fast.plain_step_s == pytest.approx(1.0 + exchange_s(facts, 2, DDP, stated(1e10, 1e-5)))


@pytest.mark.parametrize("bytes_per_s", [1.0, 1e6, 1e12])
def test_seconds_of_a_step_are_those_of_its_own_exchange_at_any_link(bytes_per_s: float) -> None:
    flow = StageFlow(
        forward_s=(0.1, 0.1), backward_s=(0.2, 0.2), loss_s=0.1, plain_s=0.7, update_s=0.3, share=0.5,
        sends=((0, 1, 100),),
    )  # fmt: skip
    facts, link = replace(facts_of(timeline()), flow=flow), stated(bytes_per_s, 1e-5)
    stages = plan(20 * MB, 0.0, "stages")
    other = RejectedFit(name="recompute every module", peak_bytes=31 * MB, step_s=1.2, reason="it does not fit")
    shared = msgspec.structs.replace(plan(29 * MB, 0.0, "zero1"), rejected=(other,))
    ways = {DDP: plan(29 * MB, 0.1), ZERO1: shared, STAGES: stages}
    found = in_order(ranked(ways, facts), link)
    plain_s = 1.0 + exchange_s(facts, 2, DDP, link)
    assert len(found) == 3
    for each in found:
        assert each.step_s is not None
        assert each.plain_step_s == pytest.approx(plain_s)
        assert each.step_s == pytest.approx(plain_s + sum(one.added_s or 0.0 for one in each.measures))
        # Computed passes of all batches, if nothing else.
        assert each.step_s > 0.5
    shares = next(each for each in found if way_of(each) == ZERO1)
    assert shares.rejected[-1].step_s == pytest.approx(1.2 + exchange_s(facts, 2, ZERO1, link))
    assert [each.step_s for each in found] == sorted(each.step_s or 0.0 for each in found)
    assert all((each.step_s or 1.0) > 0.5 for each in found[0].rejected)


def test_what_does_not_fit_is_not_chosen_and_the_nearest_miss_is_where_nothing_fits() -> None:
    facts, link = facts_of(timeline()), stated(1e10, 1e-5)
    plans = {DDP: plan(31 * MB, 0.0), ZERO1: plan(29 * MB, 5.0, "zero1")}
    found = chosen(ranked(plans, facts), link)
    assert found.fits
    assert found.rejected[0].reason == "it does not fit"
    worse = {**plans, ZERO1: msgspec.structs.replace(plans[ZERO1], peak_bytes=33 * MB, lacks_bytes=3 * MB)}
    nearest = chosen(ranked(worse, facts), link)
    assert (nearest.fits, nearest.peak_bytes) == (False, 31 * MB)


def some(name: str, model: TracedModel) -> FitQuestion:
    features: Any = None  # of what is not asked here
    return FitQuestion(
        name=name, features=features, timeline=timeline(), model=model, budget=18 * MB, device="d", emulated=True,
        barred={"recompute": "a test"},
    )  # fmt: skip


def test_weights_are_shared_where_the_program_allows_it() -> None:
    units = ("blocks.0", "blocks.1")
    facts = facts_of(timeline(), units)
    ways = ways_of(some("p", TracedModel(units=units)), facts)
    assert ways == (
        DDP, ZERO1, RankWay("fsdp2", units), RankWay("fsdp2", ("blocks.1",)), RankWay("fsdp2"),
    )  # fmt: skip
    assert ways_of(some("p", TracedModel(units=units, not_sharded="it is sparse")), facts) == (DDP, ZERO1)


def test_kept_units_spare_a_gather_and_gloo_waits_for_all() -> None:
    facts, link = facts_of(timeline(), ("blocks.0", "blocks.1")), stated(1e9, 1e-5)
    freed, kept = (exchange_s(facts, 2, RankWay("fsdp2", units), link) for units in ((), ("blocks.0",)))
    assert freed - kept == pytest.approx(4 * MB / 2 / link.bandwidth, rel=0.05)
    # Weights twice, and gradients whole.
    assert freed == pytest.approx((2 * 6 * MB / 2 + 6 * MB) / link.bandwidth, rel=0.05)
    assert exchange_s(facts, 2, RankWay("fsdp2"), link, "nccl") < freed


def test_of_ways_that_gather_more_only_those_are_certified_that_compute_less_again() -> None:
    every, one, none = RankWay("fsdp2", ("a", "b")), RankWay("fsdp2", ("b",)), RankWay("fsdp2")
    plans = {DDP: plan(31 * MB, 0.0), every: plan(29 * MB, 0.5), one: plan(28 * MB, 0.5), none: plan(27 * MB, 0.1)}
    assert worth_certifying(plans) == [every, none]
    assert worth_certifying({DDP: plan(33 * MB, 0.0), every: plan(31 * MB, 0.0)}) == [every]


def test_plans_that_fit_stand_by_what_they_take_and_the_next_one_is_there_if_the_first_is_refused() -> None:
    facts, link = facts_of(timeline(), ("blocks.0", "blocks.1")), stated(1e10, 1e-5)
    measure = FitMeasure(kind="fsdp2", number=2, paths=facts.units, promise="within 1e-6")
    shared = msgspec.structs.replace(plan(20 * MB, 0.0), measures=(measure,))
    fits = ranked({DDP: plan(31 * MB, 0.0), ZERO1: plan(29 * MB, 0.2, "zero1"), RankWay("fsdp2"): shared}, facts)
    assert [[each.kind for each in found.measures] for found in in_order(fits, link)] == [["fsdp2"], ["zero1"]]
    nothing = ranked({DDP: plan(31 * MB, 0.0)}, facts)
    assert [found.fits for found in in_order(nothing, link)] == [False]
