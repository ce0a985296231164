"""What lies in host memory: peaks of the same step traced so, and choices between it and repetition."""

from __future__ import annotations

import itertools
from dataclasses import replace as replaced

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit, taken_of
from stoker.perf.memory.choice.offloading import HostLink, saved_of, sent_away
from stoker.perf.memory.choice.options import Options, why_states_stay, with_options
from stoker.perf.memory.choice.units import nested_units, repeated
from stoker.perf.memory.timeline import step_peak, with_seconds
from stoker.records.fitting import FitPlan, TracedModel
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.offloading import Offloading
from stoker.train.fitting.states_away import StatesAway

WIDTH, SAMPLES = 64, 512
SLOW, QUICK = HostLink(1e6, overlaps=True), HostLink(1e12, overlaps=True)
MODEL = TracedModel(model="Sequential", num_parameters=1, optimizers=("AdamW",))


class Block(nn.Module):
    """A residual block of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(nn.functional.gelu(self.into(self.norm(x))))


def net() -> nn.Sequential:
    return nn.Sequential(*[Block() for _ in range(5)], nn.Linear(WIDTH, 100))


def traced() -> tuple[StepFeatures, MemoryTimeline]:
    """A step of five blocks, with states that are there already."""
    model = net()
    features, timeline = trace(
        model, torch.empty(SAMPLES, WIDTH), optimizer=torch.optim.AdamW(model.parameters()), target="cpu"
    )
    return features, with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


PLAIN = traced()


def counted(places: tuple[int, ...] = (), states: bool = False) -> int:
    """The counted peak of the same step, with what some blocks save, or the states, in host memory."""
    model, x = net(), torch.randn(SAMPLES, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    with Patches("test") as patches:
        Offloading([model[place] for place in places], patches, lambda place, reason: pytest.fail(reason))
        held = StatesAway(optimizer) if states else None
        peak = 0
        with LiveBytes([x, *model.parameters()]) as live:
            for _ in range(2):
                optimizer.zero_grad()
                live.begin()
                model(x).sum().backward()
                optimizer.step()
            peak = live.peak
        if held is not None:
            held.close()
    return peak


UNITS = {unit.path: unit for unit in nested_units(PLAIN[1], (), ())}


def question(budget: int, link: HostLink | None, model: TracedModel = MODEL, *, last: bool = False) -> FitQuestion:
    """Bytes of tensors alone, so that they can be added up."""
    return FitQuestion(
        name="net", features=PLAIN[0], timeline=PLAIN[1], model=model, budget=budget, device="GPU", emulated=True,
        link=link, host_is_last=last,
    )  # fmt: skip


def plain_peak() -> int:
    return taken_of(PLAIN[1], emulated=True, expandable=False)


@pytest.mark.parametrize("places", [(0,), (4,), (0, 1, 2, 3, 4), (0, 2, 4), (1, 2)])
def test_the_peak_is_what_is_counted(places: tuple[int, ...]) -> None:
    changed, seconds = sent_away(PLAIN[1], [UNITS[str(place)] for place in places], SLOW)
    found = counted(places)
    # The last block's own come back one by one, where it asks for them: a little less.
    assert found <= 1.001 * step_peak(changed).bytes
    assert found == pytest.approx(step_peak(changed).bytes, rel=0.025)
    assert found < counted() or places == (4,)
    assert seconds > 0


def test_states_that_are_away_leave_the_peak() -> None:
    changed, seconds = with_options(PLAIN[1], Options(states_away=True), SLOW)
    assert step_peak(PLAIN[1]).bytes == pytest.approx(counted(), rel=0.001)
    assert step_peak(changed).bytes == pytest.approx(counted(states=True), rel=0.02)
    states = sum(one.bytes for one in PLAIN[1].buffers if one.category == "optimizer")
    assert seconds == pytest.approx(2 * states / SLOW.bytes_per_s, rel=0.1)
    assert why_states_stay(PLAIN[1], MODEL) == ""
    assert "LBFGS may look" in why_states_stay(PLAIN[1], replace(MODEL, optimizers=("LBFGS",)))


@given(places=st.sets(st.integers(0, 4), min_size=1))
def test_only_lives_change(places: set[int]) -> None:
    units = [UNITS[str(place)] for place in sorted(places)]
    changed, _ = sent_away(PLAIN[1], units, QUICK)
    assert changed.calls == PLAIN[1].calls
    back = changed.buffers[len(PLAIN[1].buffers) :]
    for before, after in zip(PLAIN[1].buffers, changed.buffers, strict=False):
        assert replace(after, death=0) == replace(before, death=0)
        assert after.death <= before.death
    assert sum(one.bytes for one in back) == sum(saved_of(PLAIN[1], unit.passes[0]).bytes for unit in units)
    assert all(one.birth < one.death for one in back)


@given(rate=st.floats(1e6, 1e12), more=st.floats(1.0, 100.0))
def test_a_quicker_link_is_never_slower_and_what_compute_hides_is_free(rate: float, more: float) -> None:
    units = [UNITS[str(place)] for place in range(5)]
    first, second = (sent_away(PLAIN[1], units, HostLink(each, overlaps=True))[1] for each in (rate, more * rate))
    assert second <= first
    assert first <= sent_away(PLAIN[1], units, HostLink(rate, overlaps=False))[1]
    assert sent_away(PLAIN[1], units, HostLink(1e18, overlaps=True))[1] < 1e-9


def kinds(plan: FitPlan) -> set[str]:
    return {measure.kind for measure in plan.measures}


def test_host_memory_is_taken_only_where_it_is_quicker_than_repetition() -> None:
    budget = int(0.7 * plain_peak())
    alone, slow, quick = (plan_fit(question(budget, link)) for link in (None, SLOW, QUICK))
    assert alone.fits
    assert slow.step_s == alone.step_s
    assert not kinds(slow) & {"offload", "states_away"}
    assert any("simulated" in each.name and each.reason == "it is slower" for each in slow.rejected)
    assert quick.fits
    assert kinds(quick) & {"offload", "states_away"}
    assert quick.step_s is not None
    assert alone.step_s is not None
    assert quick.step_s < alone.step_s
    assert "simulated" in " ".join(quick.notes)


def test_on_an_emulated_device_it_is_the_last_that_is_taken() -> None:
    budget = int(0.7 * plain_peak())
    plan = plan_fit(question(budget, QUICK, last=True))
    assert plan.measures == plan_fit(question(budget, None)).measures
    least = plan_fit(question(1000, None)).peak_bytes
    lower = plan_fit(question(least - least // 20, QUICK, last=True))
    assert lower.fits
    assert "states_away" in kinds(lower)
    assert lower.peak_bytes <= least - least // 20


def test_a_gpu_has_it_among_all_others() -> None:
    taken = taken_of(PLAIN[1], emulated=False, expandable=False)
    asked = replaced(question(taken - step_peak(PLAIN[1]).bytes // 3, QUICK), emulated=False)
    plan = plan_fit(asked)
    assert plan.fits
    assert kinds(plan) & {"offload", "states_away"}


def test_the_choice_is_the_best_of_all() -> None:
    """Every way of five blocks, repeated, away or kept, priced and played one by one."""
    units = [UNITS[str(place)] for place in range(5)]
    link = HostLink(2e6, overlaps=True)
    found: list[tuple[int, float]] = []
    for ways in itertools.product(("kept", "away", "nothing"), repeat=5):
        away = [unit for unit, way in zip(units, ways, strict=True) if way == "away"]
        again = [unit for unit, way in zip(units, ways, strict=True) if way == "nothing"]
        timeline, seconds = sent_away(PLAIN[1], away, link)
        changed, more = repeated(timeline, [(unit, "nothing") for unit in again])
        found.append((taken_of(changed, emulated=True, expandable=False), seconds + more))
    parts = [path for path in UNITS if "." in path]
    model = replace(
        MODEL, kept_as_is=dict.fromkeys(parts, "blocks alone"), class_stays=tuple(parts), gradients_read="somebody",
        optimizers=(),
    )  # fmt: skip
    for share in (0.9, 0.8, 0.7, 0.6):
        budget = int(share * plain_peak())
        asked = replaced(question(budget, link, model), barred={"products": "blocks alone", "one_by_one": "likewise"})
        plan = plan_fit(asked)
        best = min((seconds for peak, seconds in found if peak <= 0.995 * budget), default=None)
        if best is not None:
            assert plan.fits
            assert plan.step_s is not None
            assert plan.plain_step_s is not None
            assert plan.step_s - plan.plain_step_s <= 1.01 * best + 1e-9
