"""Memory of candidates by the timeline of the program: what fits, and the modules that make it fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from stoker.perf.catalogue import gpu
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import trace
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.perf.memory.timeline import step_peak, with_seconds
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import Offer
from stoker.perf.planning.space import Candidate
from stoker.perf.strategy import DataParallel, Strategy
from stoker.records.fitting import TracedModel


def traced() -> tuple[StepFeatures, MemoryTimeline]:
    blocks = [nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(6)]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    features, timeline = trace(model, torch.empty(2048, 64), optimizer=torch.optim.AdamW)
    return features, with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


TRACED = traced()
PEAK = step_peak(TRACED[1]).bytes


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


def test_modules_are_recomputed_until_it_fits_and_no_more() -> None:
    memory = PlannedMemory(traced=TRACED)
    before: tuple[str, ...] = ()
    for share in (0.95, 0.8, 0.6, 0.5):
        plain = candidate(share * PEAK * 1.3)
        if memory.fits(TRACED[0], plain):
            continue
        paths = memory.recomputes(TRACED[0], plain)
        changed = replace(plain, strategy=replace(plain.strategy, recomputed=paths))
        assert memory.fits(TRACED[0], changed), share
        assert len(paths) >= len(before)
        before = paths
    assert before


def test_what_must_stay_is_not_recomputed() -> None:
    kept = {str(place): "its forward pass writes `calls`" for place in range(6)}
    tight = candidate(0.6 * PEAK)
    for model in (TracedModel(kept_as_is=kept), TracedModel(compiled=True)):
        assert not set(PlannedMemory(traced=TRACED, model=model).recomputes(TRACED[0], tight)) & kept.keys()


def test_replicas_that_are_split_are_judged_by_layers() -> None:
    memory, strategy = PlannedMemory(traced=TRACED), Strategy(pipeline=2)
    by_layers = PlannedMemory().fits(TRACED[0], candidate(PEAK, gpus=2, strategy=strategy))
    assert memory.fits(TRACED[0], candidate(PEAK, gpus=2, strategy=strategy)) == by_layers
