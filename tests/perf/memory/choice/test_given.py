"""Modules that leave tensors in an object that they are given: what holds these is seen in the trace."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from stoker.core.patching import Patches
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.units import nested_units, repeated
from stoker.perf.memory.timeline import step_peak
from stoker.train.fitting.recomputing import recompute
from tests.train.fitting.test_remembering import WIDTH, Model

BLOCKS, SAMPLES = 6, 256


def traced(repeats: bool, holds: bool) -> MemoryTimeline:
    """A step whose program holds the cache during the backward pass, or drops it before."""
    model = Model(BLOCKS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        out, cache = model(x)
        if not holds:
            del cache
        out.square().mean().backward()
        optimizer.step()

    with Patches("test") as patches:
        for block in model.blocks if repeats else ():
            recompute(block, "nothing", patches)
        return trace(step, torch.empty(SAMPLES, WIDTH), target="cpu")[1]


@pytest.mark.parametrize("holds", [False, True])
def test_the_peak_is_that_of_the_trace(holds: bool) -> None:
    plain, fitted = traced(False, holds), traced(True, holds)
    units = nested_units(plain, {"blocks"})  # which is never called
    assert [unit.path for unit in units] == [f"blocks.{place}" for place in range(BLOCKS)]
    found = step_peak(repeated(plain, [(unit, "nothing") for unit in units])[0]).bytes
    # The keys of the block that is repeated may be counted a moment too long.
    assert step_peak(fitted).bytes <= found <= 1.025 * step_peak(fitted).bytes
    unseen = replace(plain, buffers=tuple(replace(one, released=0) for one in plain.buffers))
    naive = step_peak(repeated(unseen, [(unit, "nothing") for unit in units])[0]).bytes
    keys = BLOCKS * SAMPLES * WIDTH * 4
    assert (naive <= found - keys // 2) is holds, "what the program holds is not saved by a repetition"


def test_what_no_object_holds_is_released_at_once() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    timeline = trace(lambda x: model(x).sum().backward(), torch.empty(SAMPLES, WIDTH), target="cpu")[1]
    assert not any(one.released for one in timeline.buffers)
    assert sum(1 for one in traced(False, False).buffers if one.released) == BLOCKS
