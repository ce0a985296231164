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
from stoker.perf.memory.choice.offloading import HostLink
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.perf.memory.timeline import step_peak, with_seconds
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import Offer
from stoker.perf.planning.space import Candidate
from stoker.perf.prediction.predictor import Predictor
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


def candidate(
    room: float, *, gpus: int = 1, strategy: Strategy | None = None, micro_batch: int = 2048, slot: float = 16e9
) -> Candidate:  # fmt: skip
    """On GPUs that have this room besides their context, in slots of so many bytes/s."""
    card = replace(gpu("T4"), memory_bytes=(room + CONTEXT_BYTES) / 0.985, pcie=slot)
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
    """Of replicas, nothing lies in host memory: with less room more is recomputed."""
    memory = PlannedMemory(traced=TRACED)
    before = 0
    for share in (0.95, 0.8, 0.6, 0.5):
        plain = candidate(share * PEAK * 1.3, gpus=2)
        if memory.fits(TRACED[0], plain):
            continue
        changed = leaner(memory, plain)
        assert memory.fits(TRACED[0], changed), share
        assert not changed.strategy.uses_host
        count = len(changed.strategy.recomputed) + len(changed.strategy.products_kept)
        assert count >= before
        before = count
    assert before


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3, 0.1])
@pytest.mark.parametrize("slot", [16e9, 1e8])
def test_the_choice_is_that_of_fit(share: float, slot: float) -> None:
    """Modules, what they keep, gradients that are used up, and host memory: as for one process with as much memory."""
    memory = PlannedMemory(traced=TRACED, model=OPTIMIZED)
    plain = candidate(share * PEAK, slot=slot)
    strategy = memory.spares(TRACED[0], plain)
    fit = memory.fits(TRACED[0], plain)
    room = (plain.offer.gpu.memory_bytes * 0.985 - CONTEXT_BYTES) * PEAK / (PEAK + fit.parts["fragmentation"])
    times = Predictor().rank(TRACED[0], plain.offer.gpu).times
    question = FitQuestion(
        name="net", features=TRACED[0], timeline=with_seconds(TRACED[1], TRACED[0], times), model=OPTIMIZED,
        budget=int(room), device="", emulated=True, barred={"one_by_one": "it is taken for granted"},
        link=HostLink(slot, overlaps=True),
    )  # fmt: skip
    fitted = plan_fit(question)
    keeps = {path: each.keeps for each in fitted.of("recompute") for path in each.paths}
    assert dict.fromkeys(strategy.recomputed, "nothing") | dict.fromkeys(strategy.products_kept, "products") == keeps
    assert bool(strategy.updates) is bool(fitted.of("used_up"))
    assert strategy.states_away is bool(fitted.of("states_away"))
    assert strategy.away == tuple(path for each in fitted.of("offload") for path in each.paths)
    changed = memory.fits(TRACED[0], leaner(memory, plain))
    assert bool(changed) is fitted.fits
    tensors = changed.needed - changed.parts["context"] - changed.parts["fragmentation"]
    assert tensors == pytest.approx(fitted.peak_bytes, rel=1e-6)
    copied_s = sum(each.added_s or 0.0 for each in (*fitted.of("states_away"), *fitted.of("offload")))
    assert strategy.copies_s == pytest.approx(copied_s, abs=1e-9)


def test_a_slow_slot_leaves_host_memory_to_what_fits_no_other_way() -> None:
    memory = PlannedMemory(traced=TRACED, model=OPTIMIZED)
    fast, slow = (memory.spares(TRACED[0], candidate(0.7 * PEAK, slot=slot)) for slot in (1e13, 1e6))
    assert fast.uses_host
    assert not slow.uses_host
    assert slow.recomputed


def test_host_memory_takes_its_seconds_of_each_micro_batch() -> None:
    kept = {f"{place}{part}": "it counts calls" for place in range(6) for part in ("", ".0", ".1", ".2")}
    memory = PlannedMemory(traced=TRACED, model=replaced(OPTIMIZED, kept_as_is=kept))
    plain = candidate(0.7 * PEAK, slot=1e9)
    strategy = memory.spares(TRACED[0], plain)
    assert strategy.away
    assert strategy.copies_s > 0
    four = memory.spares(TRACED[0], replace(plain, strategy=Strategy(accumulation=4)))
    assert four.copies_s > strategy.copies_s
    machines = plain.machines
    steps = [
        Predictor().predict(TRACED[0], machines, each).seconds for each in (replace(strategy, copies_s=0.0), strategy)
    ]
    assert steps[1] - steps[0] == pytest.approx(strategy.copies_s, rel=0.01)


def test_products_are_kept_where_that_is_enough() -> None:
    """Blocks with dropout, which leave more than their products do."""
    features, timeline = PLAIN
    memory = PlannedMemory(traced=PLAIN, model=OPTIMIZED)
    peak = step_peak(timeline).bytes
    cards = [candidate(share * peak, micro_batch=256, slot=1e6) for share in (0.95, 0.9, 0.8, 0.4)]
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
