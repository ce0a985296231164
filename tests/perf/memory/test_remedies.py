"""Remedies of a whole program on the timeline, against the traced program that has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.step import trace
from stoker.perf.memory.remedies import one_by_one, sharded, with_copies
from stoker.perf.memory.timeline import by_category, step_peak


def traced(*, foreach: bool = True) -> MemoryTimeline:
    module = nn.Sequential(*[nn.Linear(300, 300) for _ in range(6)])
    return trace(module, torch.empty(1, 300), optimizer=lambda p: torch.optim.AdamW(p, foreach=foreach))[1]


@pytest.fixture(scope="module")
def plain() -> MemoryTimeline:
    return traced()


def test_an_optimizer_without_temporaries_keeps_those_of_the_largest_parameter(plain: MemoryTimeline) -> None:
    changed, added_s = one_by_one(plain)
    single = traced(foreach=False)
    assert step_peak(plain).bytes > step_peak(changed).bytes
    assert step_peak(changed).bytes == pytest.approx(step_peak(single).bytes, rel=0.07)
    assert 0 < added_s < 0.01


def test_shares_of_ranks(plain: MemoryTimeline) -> None:
    before = by_category(plain, step_peak(plain))
    for weights in (False, True):
        changed = sharded(plain, 4, weights=weights, gathered_bytes=1000)
        found = by_category(changed, step_peak(changed))
        assert found["optimizer"] == pytest.approx(before["optimizer"] / 4, rel=0.01)
        assert found["parameters"] == pytest.approx(before["parameters"] / (4 if weights else 1), rel=0.01)
    assert step_peak(with_copies(plain, 10**6)).bytes == step_peak(plain).bytes + 10**6
