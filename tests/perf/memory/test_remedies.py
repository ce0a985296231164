"""Remedies on the timeline against the traced program that has them, and the choice of blocks against all choices."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.step import trace
from stoker.perf.memory.choosing import BlockCost, choose, costs_of
from stoker.perf.memory.remedies import kept_bytes, one_by_one, recomputed, sharded, spans_of, with_copies
from stoker.perf.memory.reserve import replay
from stoker.perf.memory.timeline import by_category, step_peak, with_seconds


class Stack(nn.Module):
    """Encoder blocks, some of which torch recomputes."""

    def __init__(self, repeated: tuple[int, ...]) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 256, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([layer, *(nn.TransformerEncoderLayer(64, 4, 256, 0.1) for _ in range(3))])
        self.head = nn.Linear(64, 500)
        self.repeated = repeated

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if place in self.repeated else layer(x)
        return self.head(x)


def traced(*repeated: int) -> MemoryTimeline:
    features, timeline = trace(Stack(repeated), torch.empty(16, 64, 64), optimizer=torch.optim.AdamW)
    return with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


@pytest.fixture(scope="module")
def plain() -> MemoryTimeline:
    return traced()


@pytest.mark.parametrize("repeated", [(0,), (3,), (0, 2), (0, 1, 2, 3)])
def test_recomputed_blocks_have_the_peak_of_torch(plain: MemoryTimeline, repeated: tuple[int, ...]) -> None:
    spans = spans_of(plain)
    assert [span.path for span in spans] == [f"layers.{place}" for place in range(4)]
    changed, added_s = recomputed(plain, [spans[place] for place in repeated])
    assert step_peak(changed).bytes == pytest.approx(step_peak(traced(*repeated)).bytes, rel=1e-3)
    assert added_s == sum(spans[place].seconds for place in repeated) > 0
    assert replay(changed).reserved >= step_peak(changed).bytes


def test_costs_of_blocks_give_the_peak_of_each_choice(plain: MemoryTimeline) -> None:
    spans = spans_of(plain)
    costs, rest = costs_of(plain, spans)
    for count in range(5):
        for places in itertools.combinations(range(4), count):
            kept, most = 0, 0
            for place, cost in enumerate(costs):
                most = max(most, kept + cost.kept + cost.rest)
                kept += 0 if place in places else cost.kept
            most = max(most, kept + rest)
            changed, _ = recomputed(plain, [spans[place] for place in places])
            assert step_peak(changed).bytes == pytest.approx(most, rel=2e-3), places


COSTS = st.lists(
    st.builds(BlockCost, kept=st.integers(0, 50), rest=st.integers(0, 30), seconds=st.integers(1, 9).map(float)),
    min_size=1,
    max_size=8,
)


@given(blocks=COSTS, budget=st.integers(0, 250), rest=st.integers(0, 40))
def test_the_choice_is_the_quickest_of_all_that_fit(blocks: list[BlockCost], budget: int, rest: int) -> None:
    def fits(places: frozenset[int]) -> bool:
        kept = 0
        for place, block in enumerate(blocks):
            if kept + block.kept + block.rest > budget:
                return False
            kept += 0 if place in places else block.kept
        return kept + rest <= budget

    every = range(len(blocks))
    choices = (frozenset(places) for count in range(len(blocks) + 1) for places in itertools.combinations(every, count))
    least = min((sum(blocks[place].seconds for place in each) for each in choices if fits(each)), default=None)
    found = choose(blocks, budget, rest=rest)
    assert (found is None) == (least is None)
    if found is not None:
        assert fits(found)
        assert sum(blocks[place].seconds for place in found) == least


def test_many_uneven_blocks_stay_within_the_budget() -> None:
    blocks = [BlockCost(10**6 + 7919 * place % 10**6, 10**5, 1.0 + place % 7) for place in range(200)]
    budget = sum(block.kept for block in blocks) // 2
    found = choose(blocks, budget)
    assert found is not None
    assert sum(block.kept for place, block in enumerate(blocks) if place not in found) <= budget


def test_an_optimizer_without_temporaries_keeps_those_of_the_largest_parameter() -> None:
    module = nn.Sequential(*[nn.Linear(300, 300) for _ in range(6)])
    _, timeline = trace(module, torch.empty(1, 300), optimizer=torch.optim.AdamW)
    changed, added_s = one_by_one(timeline)
    single = trace(module, torch.empty(1, 300), optimizer=lambda p: torch.optim.AdamW(p, foreach=False))[1]
    assert step_peak(timeline).bytes > step_peak(changed).bytes
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


def test_blocks_that_are_called_twice_are_left_out() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](self.layers[1](self.layers[0](x)))

    _, timeline = trace(Twice(), torch.empty(4, 8))
    assert [span.path for span in spans_of(timeline)] == ["layers.1"]
    assert kept_bytes(timeline, spans_of(timeline)[0]) == 0
