"""Greedy narrowing against errors that add up, where the best designs are known; and what a loss is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.comparing import expected_flips, loss_of
from stoker.deploy.lowering.narrowing import LEAST, Measured, Narrowing, Width

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=3)
SENSITIVITIES = st.lists(st.floats(0.01, 100.0), min_size=3, max_size=3)


class Additive:
    """Layers whose rounding errors are independent: each adds its sensitivity times 4^-bits to the squared error."""

    def __init__(self, sizes: list[int], sensitivities: list[float]) -> None:
        self.sizes = {Width(f"layer{at}", "weights"): size for at, size in enumerate(sizes)}
        self.sensitive = dict(zip(self.sizes, sensitivities, strict=False))
        self.runs = 0

    def cost(self, bits: Mapping[Width, int]) -> float:
        return float(sum(size * bits[width] for width, size in self.sizes.items()))

    def error(self, bits: Mapping[Width, int]) -> float:
        return math.sqrt(sum(each * 4.0 ** -bits[width] for width, each in self.sensitive.items()))

    def measured(self, bits: Mapping[Width, int]) -> Measured:
        self.runs += 1
        error = self.error(bits)
        return Measured(bits=bits, cost=self.cost(bits), error=error, loss=error)

    def narrowed(self, start: int, most: float) -> Narrowing:
        found = Narrowing(self.measured(dict.fromkeys(self.sizes, start)), most)
        while (bits := found.next_step()) is not None:
            found.measured(self.measured(bits))
        return found


@given(sizes=SIZES, sensitivities=SENSITIVITIES, start=st.integers(2, 8), most=st.floats(0.0, 2.0))
def test_every_design_is_cheaper_and_within_the_loss(
    sizes: list[int], sensitivities: list[float], start: int, most: float
) -> None:
    layers = Additive(sizes, sensitivities)
    path = layers.narrowed(start, most).path
    assert all(after.cost < before.cost for before, after in itertools.pairwise(path))
    assert all(each.loss <= most for each in path[1:])
    assert all(LEAST[width.part] <= bits <= start for each in path for width, bits in each.bits.items())


@given(sizes=SIZES, sensitivities=SENSITIVITIES, start=st.integers(2, 8), most=st.floats(0.0, 2.0))
def test_it_ends_where_no_width_may_become_narrower(
    sizes: list[int], sensitivities: list[float], start: int, most: float
) -> None:
    layers = Additive(sizes, sensitivities)
    last = layers.narrowed(start, most).design
    for width, bits in last.bits.items():
        assert bits == LEAST["weights"] or layers.error({**last.bits, width: bits - 1}) > most


@given(sizes=SIZES, sensitivities=SENSITIVITIES)
@settings(max_examples=30)
def test_no_design_is_better_in_both(sizes: list[int], sensitivities: list[float]) -> None:
    """Where errors add up, greedy designs are efficient (Fox, "Discrete Optimization Via Marginal Analysis", 1966)."""
    layers = Additive(sizes, sensitivities)
    path = layers.narrowed(5, math.inf).path
    every = [dict(zip(layers.sizes, bits, strict=True)) for bits in itertools.product(range(2, 6), repeat=len(sizes))]
    for each in path:
        for other in every:
            cheaper = layers.cost(other) <= each.cost and layers.error(other) < each.error * (1 - 1e-9)
            assert not cheaper, (each, other)


def test_only_the_most_promising_step_is_measured_again() -> None:
    layers = Additive([10] * 40, [10.0**-at for at in range(40)])
    path = layers.narrowed(8, math.inf).path
    assert len(path) == 1 + 40 * 6
    assert layers.runs <= 1 + 40 + 2 * 40 * 6  # measuring all of them each time would be about 4,900


def test_what_saves_nothing_is_left_alone() -> None:
    width = Width("a", "activations")
    found = Narrowing(Measured(bits={width: 8}, cost=5.0, error=0.0, loss=0.0), 1.0)
    bits = found.next_step()
    assert bits == {width: 7}
    found.measured(Measured(bits=bits, cost=5.0, error=0.0, loss=0.0))
    assert found.next_step() is None
    assert len(found.path) == 1


def test_an_answer_without_a_question_is_refused() -> None:
    start = Measured(bits={}, cost=1.0, error=0.0, loss=0.0)
    with pytest.raises(ValueError, match="no design was asked for"):
        Narrowing(start, 1.0).measured(start)


@given(size=st.floats(0.05, 2.0), seed=st.integers(0, 1000), classes=st.integers(2, 5))
@settings(max_examples=20)
def test_expected_flips_are_those_that_occur(size: float, seed: int, classes: int) -> None:
    chance = np.random.default_rng(seed)
    real = chance.normal(size=(4000, classes))
    found = real + chance.normal(scale=size, size=real.shape)
    counted = float((found.argmax(1) != real.argmax(1)).mean())
    expected = expected_flips(found, real)
    # The bound for several classes is the sum over them: at most too high, and then by little where flips are few.
    assert expected >= counted - 4 * math.sqrt(counted / len(real)) - 0.01
    assert expected <= counted * 1.3 + 0.03 or counted > 0.3


@given(seed=st.integers(0, 1000), factor=st.floats(1e-3, 1e3))
def test_expected_flips_depend_on_no_scale(seed: int, factor: float) -> None:
    chance = np.random.default_rng(seed)
    real = chance.normal(size=(50, 4))
    found = real + chance.normal(scale=0.3, size=real.shape)
    assert expected_flips(found * factor, real * factor) == pytest.approx(expected_flips(found, real))


def test_equal_outputs_lose_nothing() -> None:
    real = np.random.default_rng(0).normal(size=(20, 3))
    assert loss_of(real, real) == 0.0
    assert loss_of(real[:, :1], real[:, :1]) == 0.0
    assert loss_of(real[:, :1] + 1, real[:, :1]) > 0.1
