"""Memory of candidates by the timeline of the program: what fits, and the modules that make it fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from msgspec.structs import replace as replaced
from torch import nn

from stoker.perf.catalogue import gpu
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.perf.memory.timeline import step_peak, with_seconds
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import Offer
from stoker.perf.planning.space import Candidate
from stoker.perf.strategy import DataParallel, Strategy
from stoker.records.fitting import TracedModel
from tests.perf.memory.choice.test_fitting import PLAIN


def traced() -> tuple[StepFeatures, MemoryTimeline]:
    blocks = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(6)]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    features, timeline = trace(model, torch.empty(2048, 64), optimizer=torch.optim.AdamW)
    return features, with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


TRACED = traced()
PEAK = step_peak(TRACED[1]).bytes
OPTIMIZED = TracedModel(optimizers=("AdamW",))


def candidate(room: float, *, gpus: int = 1, strategy: Strategy | None = None, micro_batch: int = 2048) -> Candidate:
    """On GPUs that have this room besides their context."""
    card = replace(gpu("T4"), memory_bytes=(room + CONTEXT_BYTES) / 0.985)
    offer = Offer(name="T4", gpu=card, gpus=8, per_hour=1.0)
    return Candidate(offer=offer, gpus=gpus, micro_batch=micro_batch, strategy=strategy or Strategy())


def test_one_gpu_has_the_peak_of_the_trace() -> None:
    found = PlannedMemory(traced=TRACED).fits(TRACED[0], candidate(2 * PEAK))
    assert found
    assert found.needed == pytest.approx(sum(found.parts.values()))
    assert found.needed - found.parts["context"] - found.parts["fragmentation"] == pytest.approx(PEAK)
    half = PlannedMemory(traced=TRACED).fits(TRACED[0], candidate(2 * PEAK, micro_batch=1024))
    assert half.parts["weights"] == found.parts["weights"]
    assert half.parts["activations"] == pytest.approx(found.parts["activations"] / 2, rel=0.05)


@pytest.mark.parametrize("data", ["ddp", "zero1", "zero2", "fsdp"])
def test_replicas_keep_their_shares(data: DataParallel) -> None:
    memory, strategy = PlannedMemory(traced=TRACED), Strategy(data=data)
    alone, eight = (memory.fits(TRACED[0], candidate(2 * PEAK, gpus=n, strategy=strategy)).parts for n in (1, 8))
    shared = {"ddp": (), "zero1": ("optimizer",), "zero2": ("optimizer",), "fsdp": ("weights", "optimizer")}[data]
    for name in ("weights", "optimizer"):
        assert eight[name] == pytest.approx(alone[name] / (8 if name in shared else 1), rel=0.01)


def leaner(memory: PlannedMemory, plain: Candidate) -> Candidate:
    return replace(plain, strategy=memory.spares(TRACED[0], plain))


def test_what_does_not_fit_is_made_to_and_no_more() -> None:
    memory = PlannedMemory(traced=TRACED)
    before = 0
    for share in (0.95, 0.8, 0.6, 0.5):
        plain = candidate(share * PEAK * 1.3)
        if memory.fits(TRACED[0], plain):
            continue
        changed = leaner(memory, plain)
        assert memory.fits(TRACED[0], changed), share
        count = len(changed.strategy.recomputed) + len(changed.strategy.products_kept)
        assert count >= before
        before = count
    assert before


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
def test_the_choice_is_that_of_fit(share: float) -> None:
    """Modules, what they keep, and gradients that are used up: as for one process with as much memory."""
    memory = PlannedMemory(traced=TRACED, model=OPTIMIZED)
    plain = candidate(share * PEAK)
    strategy = memory.spares(TRACED[0], plain)
    fit = memory.fits(TRACED[0], plain)
    room = (plain.offer.gpu.memory_bytes * 0.985 - CONTEXT_BYTES) * PEAK / (PEAK + fit.parts["fragmentation"])
    question = FitQuestion(
        name="net", features=TRACED[0], timeline=TRACED[1], model=OPTIMIZED, budget=int(room), device="",
        emulated=True, barred={"one_by_one": "it is taken for granted"},
    )  # fmt: skip
    fitted = plan_fit(question)
    keeps = {path: each.keeps for each in fitted.of("recompute") for path in each.paths}
    assert dict.fromkeys(strategy.recomputed, "nothing") | dict.fromkeys(strategy.products_kept, "products") == keeps
    assert bool(strategy.updates) is bool(fitted.of("used_up"))
    assert bool(memory.fits(TRACED[0], leaner(memory, plain))) is fitted.fits


def test_products_are_kept_where_that_is_enough() -> None:
    """Blocks with dropout, which leave more than their products do."""
    features, timeline = PLAIN
    memory = PlannedMemory(traced=PLAIN, model=OPTIMIZED)
    peak = step_peak(timeline).bytes
    cards = [candidate(share * peak, micro_batch=256) for share in (0.95, 0.9, 0.8, 0.4)]
    found = [memory.spares(features, each) for each in cards]
    assert any(each.products_kept for each in found[:3])
    assert found[3].recomputed


def few(**options: Any) -> Candidate:
    """Few samples, with less memory than weights, gradients and states take."""
    return candidate(0.01 * PEAK, micro_batch=16, **options)


def test_gradients_are_used_up_where_nothing_is_summed_before() -> None:
    memory = PlannedMemory(traced=TRACED, model=OPTIMIZED)
    alone = memory.spares(TRACED[0], few())
    assert alone.updates == sum(1 for one in TRACED[1].buffers if one.category == "gradients" and one.birth)
    summed = Strategy(accumulation=2)
    assert not memory.spares(TRACED[0], few(strategy=summed)).updates
    assert not memory.spares(TRACED[0], few(gpus=8)).updates
    read = replaced(OPTIMIZED, gradients_read="train.py:3 asks for gradients")
    assert not PlannedMemory(traced=TRACED, model=read).spares(TRACED[0], few()).updates


def test_what_must_stay_is_not_recomputed() -> None:
    kept = {str(place): "its forward pass writes `calls`" for place in range(6)}
    tight = candidate(0.6 * PEAK)
    for model in (TracedModel(kept_as_is=kept), TracedModel(compiled=True)):
        strategy = PlannedMemory(traced=TRACED, model=model).spares(TRACED[0], tight)
        assert not {*strategy.recomputed, *strategy.products_kept} & kept.keys()


def test_replicas_that_are_split_are_judged_by_layers() -> None:
    memory, strategy = PlannedMemory(traced=TRACED), Strategy(pipeline=2)
    by_layers = PlannedMemory().fits(TRACED[0], candidate(PEAK, gpus=2, strategy=strategy))
    assert memory.fits(TRACED[0], candidate(PEAK, gpus=2, strategy=strategy)) == by_layers
