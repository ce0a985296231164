"""Advice: what a change to a program comes to, against the same program traced and counted with that change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.advice import (
    ChangedProgram,
    accumulated,
    advice_on,
    dropped_earlier,
    has_autocast,
    in_text,
    smaller_sizes,
    worth_saying,
)
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.timeline import step_peak, with_seconds
from stoker.records.fitting import FitAdvice, FitPlan, TracedModel
from stoker.train.fitting.live_bytes import LiveBytes

WIDTH, SAMPLES = 64, 512
LINES = {"model": "train.py:3", "zero_grad": "train.py:4", "step": "train.py:6", "loader": "train.py:1"}
MODEL = TracedModel(model="Sequential", num_parameters=1, optimizers=("AdamW",), lines=LINES)
MB = 10**6


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
                           for _ in range(4)])  # fmt: skip


def traced(samples: int) -> tuple[StepFeatures, MemoryTimeline]:
    model = net()
    features, timeline = trace(
        model, torch.empty(samples, WIDTH), optimizer=torch.optim.AdamW(model.parameters()), target="cpu"
    )
    return features, with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


def counted(step: Callable[[nn.Module, torch.optim.Optimizer], None]) -> int:
    """The most bytes alive in a step behind a first one."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    with LiveBytes(model.parameters()) as live:
        for _ in range(2):
            live.begin()
            step(model, optimizer)
        return live.peak


def question(timeline: MemoryTimeline, budget: int) -> FitQuestion:
    return FitQuestion(
        name="train.py", features=PLAIN[0], timeline=timeline, model=MODEL, budget=budget, device="emulated",
        emulated=True,
    )  # fmt: skip


PLAIN, HALF = traced(SAMPLES), traced(SAMPLES // 2)


def test_a_batch_in_parts_has_the_peak_that_is_counted() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for part in torch.randn(SAMPLES, WIDTH).chunk(2):
            model(part).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = accumulated(HALF[1], 2)
    whole = SAMPLES * WIDTH * 4 // 2  # the other part's samples are alive as well there
    assert step_peak(found).bytes == pytest.approx(counted(step) - whole, rel=0.02)
    assert step_peak(found).bytes > step_peak(HALF[1]).bytes, "sums of gradients are alive in the second part"
    seconds = [sum(call.seconds for call in each.calls if call.phase != "optimizer") for each in (HALF[1], found)]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_an_earlier_zero_grad_has_the_peak_that_is_counted() -> None:
    def late(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        loss = model(torch.randn(8, WIDTH)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def early(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH)).sum().backward()
        optimizer.step()

    assert dropped_earlier(PLAIN[1]) is None, "there are none in a step that begins without gradients"
    plain = PLAIN[1]
    gradients = [one for one in plain.buffers if one.category == "gradients" and one.birth >= plain.begin]
    forward = next(call.at for call in plain.calls if call.phase == "forward")
    backward = next(call.at for call in plain.calls if call.phase == "backward")
    old = tuple(replace(one, birth=0, death=backward, uses=()) for one in gradients)
    held = replace(plain, buffers=(*old, *plain.buffers))
    found = dropped_earlier(held)
    assert found is not None
    assert all(one.death <= max(plain.begin, forward) for one in found.buffers[: len(old)])
    size = sum(one.bytes for one in old)
    assert step_peak(held).bytes - step_peak(found).bytes <= size
    # As counted: with few samples, gradients are all that differs.
    assert counted(late) >= counted(early)
    used = replace(held, buffers=(*(replace(one, uses=(1,)) for one in old), *plain.buffers))
    assert dropped_earlier(used) is None, "somebody adds to them"


def test_changes_in_the_text_have_their_lines() -> None:
    plain = PLAIN[1]
    gradients = [one for one in plain.buffers if one.category == "gradients" and one.birth >= plain.begin]
    old = tuple(replace(one, birth=0, death=plain.end - 1, uses=()) for one in gradients)
    held = replace(plain, buffers=(*old, *plain.buffers), held=())
    (change,) = in_text(question(held, MB))
    assert (change.kind, change.line, change.name) == ("zero_grad", "train.py:4", "train.py:6")
    assert in_text(question(plain, MB)) == ()


def test_advice_is_what_the_choice_makes_of_the_changed_program() -> None:
    budget = int(0.55 * step_peak(PLAIN[1]).bytes)
    asked = question(PLAIN[1], budget)
    change = ChangedProgram(
        kind="accumulate", line="train.py:6", number=2, samples=SAMPLES // 2, features=HALF[0],
        timeline=accumulated(HALF[1], 2),
    )  # fmt: skip
    found = advice_on(asked, change)
    assert found.peak_bytes <= budget
    assert found.measures >= 0
    plan = plan_fit(question(PLAIN[1], 1000))
    (only,) = worth_saying(plan, [found]) if found.peak_bytes < plan.peak_bytes else (found,)
    assert only == found
    used = advice_on(question(PLAIN[1], 1000), change)
    assert used.peak_bytes > 1000


PLAN = FitPlan(
    name="train.py", budget_bytes=100 * MB, device="emulated device", plain_bytes=200 * MB, plain_step_s=1.0,
    peak_bytes=120 * MB, step_s=1.5, lacks_bytes=20 * MB,
)  # fmt: skip


def advice(peak: int, step_s: float | None) -> FitAdvice:
    return FitAdvice(kind="batch", line="", samples=8, peak_bytes=peak * MB, step_s=step_s)


def test_what_gains_is_said_and_what_fits_comes_first() -> None:
    missing, slow, quick = advice(110, 1.0), advice(90, 1.4), advice(95, 1.2)
    assert worth_saying(PLAN, [missing, slow, advice(120, 0.1), quick]) == (quick, slow, missing)
    fits = replace(PLAN, peak_bytes=99 * MB, lacks_bytes=0)
    assert worth_saying(fits, [missing, slow, quick]) == (quick, slow), "only what is quicker than the plan"
    assert worth_saying(replace(fits, step_s=1.2), [missing, slow, quick]) == ()
    assert worth_saying(PLAN, [advice(90, None)]) == (advice(90, None),)


def test_half_precision_is_seen_and_batches_are_taken_apart_in_whole_samples() -> None:
    assert not has_autocast(PLAIN[0])
    operations = tuple(replace(each, dtype="bfloat16") for each in PLAIN[0].operations)
    assert has_autocast(replace(PLAIN[0], operations=operations))
    assert smaller_sizes(512) == (2, 4, 8, 16)
    assert smaller_sizes(5) == (2, 4)
    assert smaller_sizes(1) == ()
