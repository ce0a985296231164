"""Planning inside the program's process: what it leaves there."""

from __future__ import annotations

import torch
from torch import nn

from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.memory.reserve import replay
from stoker.run.fitting.library import LibraryPlanner


def test_a_process_that_has_planned_keeps_no_timelines() -> None:
    lives = (BufferLife(1000, 0, 4, -1, "inputs", "forward", "", ""),)
    timeline = MemoryTimeline(name="t", target="cuda", batch_size=1, begin=1, end=4, buffers=lives, calls=())
    replay(timeline)
    assert replay.cache_info().currsize, "a replay that planning asked for"
    model = nn.Linear(4, 4)
    plan = LibraryPlanner(10**9, None)(model, torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(2, 4),), {})
    assert plan.fits
    assert not replay.cache_info().currsize
