"""A pipeline as a way for ranks to share a model: what it comes to by hand, and what holds for every link."""

from __future__ import annotations

from typing import Any

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.links import Interconnect
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.memory.choice.fitting import FitQuestion
from stoker.perf.memory.ranks import DDP, STAGES, facts_of, in_order, plan_ranks, ranked, with_stages
from stoker.perf.memory.staged_ranks import added_s, staged_ranks
from stoker.perf.memory.stages import stage_flow, stage_memory
from stoker.records.fitting import CallPart, ModelCall, StageFlow, TracedModel
from tests.perf.memory.test_stages import layers, timeline

WEIGHTS, KEPT, OUTPUTS = [100, 100, 200, 200], [1000] * 4, [10, 20, 30, 40]
CALL = ModelCall(args=(CallPart(kind="tensor", shape=(4, 8), dtype="torch.float32"),))


class _Features:
    """Features of the timeline's step, as far as a cut needs them."""

    layers = tuple(layers(WEIGHTS, KEPT, OUTPUTS))


def link(bytes_per_s: float, step_s: float = 0.0) -> Interconnect:
    return Interconnect(name="network", bandwidth=bytes_per_s, step_s=step_s, spread=1.0, source="a test")


def flow(**changes: Any) -> StageFlow:
    given = {
        "forward_s": (1.0, 1.0), "backward_s": (2.0, 2.0), "loss_s": 0.0, "plain_s": 6.0, "update_s": 1.0, "share": 0.5,
        "sends": ((0, 1, 100),),
    }  # fmt: skip
    return StageFlow(**{**given, **changes})


def question(budget: int, **model: Any) -> FitQuestion:
    features: Any = _Features()
    return FitQuestion(
        name="p", features=features, timeline=timeline(WEIGHTS, KEPT, OUTPUTS, [1.0] * 4),
        model=TracedModel(**{"call": CALL, **model}), budget=budget, device="d", emulated=True,
    )  # fmt: skip


def test_two_stages_wait_in_one_of_three_turns_each_way() -> None:
    # (2 N - 1) turns of 1 s and of 2 s instead of 6 s, and half the update.
    assert added_s(flow(), 2, link(1e12)) == pytest.approx(3 * 1 + 3 * 2 - 6 - 0.5, abs=1e-6)
    assert added_s(flow(passes=3), 2, link(1e12)) == pytest.approx(3 * (9 - 6) - 0.5, abs=1e-6)


def test_what_goes_from_stage_to_stage_is_waited_for_by_who_receives_it() -> None:
    slow = added_s(flow(), 2, link(100.0)) - added_s(flow(), 2, link(1e12))
    # Both batches there and both gradients back, one after the other; then what ranks say of themselves.
    words = 3 * 128 / 100 / 2
    assert slow == pytest.approx(2 * 1.0 + 2 * 1.0 + words)
    # The outputs of the first batch go to the other rank while the last stage computes; their gradients are waited for.
    outputs = flow(sends=((0, 1, 0), (1, -1, 100)))
    more = added_s(outputs, 2, link(100.0)) - added_s(flow(sends=((0, 1, 0),)), 2, link(100.0))
    assert more == pytest.approx(1.0)


@given(
    st.integers(2, 6), st.floats(1e3, 1e9), st.floats(1.0, 10.0),
    st.lists(st.integers(0, 10_000_000), min_size=6, max_size=6),
)  # fmt: skip
def test_a_slower_link_never_makes_a_step_quicker(ranks: int, rate: float, times: float, sizes: list[int]) -> None:
    sends = (*((stage, stage + 1, sizes[stage]) for stage in range(ranks - 1)), (ranks - 1, -1, sizes[-1]))
    some = flow(forward_s=(1.0,) * ranks, backward_s=(2.0,) * ranks, sends=sends)
    quick, slow = added_s(some, ranks, link(rate * times)), added_s(some, ranks, link(rate))
    assert slow >= quick - 1e-9
    # A stage waits in N - 1 of 2 N - 1 turns at least.
    assert quick >= 3.0 * (2 * ranks - 1) - some.plain_s - 0.5 - 1e-9


def test_the_flow_of_a_step_is_that_of_its_stages() -> None:
    whole = timeline(WEIGHTS, KEPT, OUTPUTS, [1.0, 2.0, 3.0, 4.0])
    found = stage_flow(whole, ["blocks.2"])
    assert (found.forward_s, found.backward_s) == ((3.0, 7.0), (6.0, 14.0))
    assert found.plain_s == 30.0
    assert found.share == pytest.approx(400 / 600)
    assert found.sends == ((0, 1, 20),)
    assert found.passes == 1


def test_a_weight_of_two_stages_is_kept_with_its_gradient_and_states_in_both() -> None:
    once = timeline(WEIGHTS, KEPT, OUTPUTS, [1.0] * 4)
    first = msgspec.structs.replace(once.buffers[0], uses=(0, 3))
    tied = msgspec.structs.replace(once, buffers=(first, *once.buffers[1:]))
    plain, shared = (stage_memory(each, ["blocks.2"], 2) for each in (once, tied))
    assert shared[0] == plain[0]
    assert (shared[1].weights, shared[1].gradients, shared[1].states) == (500, 500, 1000)
    assert shared[1].peak == plain[1].peak + 4 * 100


def twice(once: MemoryTimeline) -> MemoryTimeline:
    """Two passes in a step, of which the second adds to the gradients of the first."""
    span, end = once.end - once.begin, once.end + once.end - once.begin
    later = [msgspec.structs.replace(each, at=each.at + span) for each in once.calls]
    buffers: list[BufferLife] = []
    for each in once.buffers:
        lasts = each.category in ("parameters", "optimizer", "gradients")
        buffers.append(msgspec.structs.replace(each, death=end if lasts else each.death))
        if not lasts:
            uses = tuple(use + len(once.calls) for use in each.uses)
            buffers.append(msgspec.structs.replace(each, birth=each.birth + span, death=each.death + span, uses=uses))
    return msgspec.structs.replace(
        once, end=end, calls=(*once.calls, *later), buffers=tuple(sorted(buffers, key=lambda each: each.birth))
    )


def test_the_last_of_several_passes_counts_with_gradients_from_before() -> None:
    once = timeline(WEIGHTS, KEPT, OUTPUTS, [1.0] * 4)
    assert stage_flow(twice(once), ["blocks.2"]) == msgspec.structs.replace(stage_flow(once, ["blocks.2"]), passes=2)
    for one, two in zip(*(stage_memory(each, ["blocks.2"], 2) for each in (once, twice(once))), strict=True):
        assert (two.weights, two.gradients, two.states, two.kept) == (one.weights, one.gradients, one.states, one.kept)
        # The passes have room for gradients as well.
        assert one.peak <= two.peak <= one.peak + one.gradients


def test_a_pipeline_is_one_of_the_ways_and_the_quickest_where_the_link_is_slow() -> None:
    budget = max(each.peak for each in stage_memory(question(0).timeline, ["blocks.2"], 2)) + 100
    asked = question(budget, units=("blocks.0", "blocks.1", "blocks.2", "blocks.3"))
    facts = facts_of(asked.timeline, asked.model.units)
    plans, facts, refused = with_stages(asked, 2, facts, plan_ranks(asked, 2, facts))
    assert not refused
    plan = plans[STAGES]
    assert plan.fits
    assert plan.certified
    (measure,) = plan.measures
    assert (measure.kind, measure.number, measure.paths, measure.call) == ("stages", 2, ("blocks.2",), CALL)
    assert max(measure.peaks) == plan.peak_bytes
    slow = in_order(ranked({DDP: plans[DDP], STAGES: plan}, facts, refused), link(1.0))
    assert slow[0].measures[0].kind == "stages"
    # DDP would send all gradients, at a byte a second.
    assert slow[0].plain_step_s is not None
    assert 0 < (slow[0].step_s or 0) < slow[0].plain_step_s


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"not_staged": "`blocks.0` must be without hooks"}, "must be without hooks"),
        ({"call": None}, "no call of its DistributedDataParallel was seen"),
    ],
)
def test_a_model_that_cannot_be_in_stages_is_named_among_what_is_not_taken(model: dict[str, Any], reason: str) -> None:
    asked = question(10_000, **model)
    with pytest.raises(ValueError, match=reason):
        staged_ranks(asked, 2)
    facts = facts_of(asked.timeline)
    plans, facts, refused = with_stages(asked, 2, facts, plan_ranks(asked, 2, facts))
    assert STAGES not in plans
    assert facts.flow is None
    (plan, *_) = in_order(ranked(plans, facts, refused), link(1e9))
    assert any(each.name.startswith("layers in stages") and reason in each.reason for each in plan.rejected)
