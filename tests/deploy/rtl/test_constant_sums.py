"""Sums with constant weights by shared additions: equal to products, within their ends, no deeper than asked."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.rtl.constant_sums import constant_sums, signed_digits, width


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, list[tuple[int, int]], np.random.Generator]:
    """Weights of 2 to 9 bits, some rows alike, some 0, and inputs of several widths."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    outputs, inputs, bits = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(2, 9))
    weights = random.integers(-(1 << (bits - 1)), 1 << (bits - 1), (outputs, inputs))
    weights[random.random(weights.shape) < draw(st.sampled_from([0.0, 0.5, 0.9]))] = 0
    if draw(st.booleans()):
        weights[-1] = weights[0] * draw(st.sampled_from([1, -1, 2]))
    ends = [(0, 255), (-128, 127), (-3, 12), (0, 1)]
    return weights, [ends[int(at)] for at in random.integers(0, len(ends), inputs)], random


@given(matrices(), st.booleans())
@settings(max_examples=150)
def test_sums_are_the_products_and_stay_within_their_ends(made: tuple, with_biases: bool) -> None:
    weights, inputs, random = made
    biases = [int(each) for each in random.integers(-5000, 5000, len(weights))] if with_biases else []
    found = constant_sums(weights, inputs, biases)
    low, high = (np.array(each) for each in zip(*inputs, strict=True))
    samples = random.integers(low, high + 1, (20, len(inputs)))
    # What makes each output least and largest, too.
    extremes = [np.where((weights > 0) == largest, high, low) for largest in (True, False)]
    samples = np.concatenate([samples, *extremes])
    assert (found.computed(samples) == samples @ weights.T + (biases or 0)).all()
    assert not biases or all(each.value is not None and not (each.minus or each.shift) for each in found.outputs)
    values = [*samples.T, *(np.full(len(samples), each) for each in biases)]
    for at, each in enumerate(found.sums):
        right = values[each.right] << each.shift
        values.append(values[each.left] - right if each.minus else values[each.left] + right)
        assert each.low <= values[-1].min()
        assert values[-1].max() <= each.high
        assert each.level == 1 + max(found.level(each.left), found.level(each.right))
        assert max(each.left, each.right) < found.given + at


@given(matrices(), st.integers(0, 6))
@settings(max_examples=100)
def test_no_deeper_than_asked_and_never_more_additions_than_digits(made: tuple, levels: int) -> None:
    weights, inputs, _ = made
    digits = [sum(len(list(signed_digits(int(weight)))) for weight in row) for row in weights]
    least = max(max(0, count - 1).bit_length() for count in digits)
    found = constant_sums(weights, inputs, levels=levels)
    assert found.levels <= max(least, levels)
    assert len(found.sums) <= sum(max(0, count - 1) for count in digits)


def test_what_outputs_share_is_added_once() -> None:
    rows = np.array([[5, 3], [10, 6], [-5, -3]])
    found = constant_sums(rows, [(0, 15)] * 2)
    assert len(found.sums) == 3  # 5 x, 4 y - y, their sum: the other outputs are it, shifted or negative
    assert [(each.shift, each.minus) for each in found.outputs] == [(0, False), (1, False), (0, True)]


def test_what_is_subtracted_counts_once_a_level_and_constants_do_not() -> None:
    inputs = [(0, 255)] * 3
    apart = constant_sums(np.array([[1, -1, 0]]), inputs)
    assert [(each.minus, each.adder_bits) for each in apart.sums] == [(True, 9)]
    assert apart.subtracted_bits == 8
    twice = constant_sums(np.array([[1, -1, 0], [0, -1, 1]]), inputs)
    assert len(twice.sums) == 2
    assert twice.subtracted_bits == 8
    assert constant_sums(np.array([[1, 1, 0]]), inputs).subtracted_bits == 0


def test_a_layer_of_random_weights_takes_under_half_of_the_additions_of_its_digits() -> None:
    weights = np.random.default_rng(0).integers(-127, 128, (32, 32))
    digits = sum(len(list(signed_digits(int(weight)))) for weight in weights.ravel())
    assert len(constant_sums(weights, [(-128, 127)] * 32).sums) < 0.5 * (digits - 32)


@pytest.mark.parametrize("number", [0, 1, -1, 7, -8, 127, -128, 255, 1 << 15, -12345])
def test_signed_digits_are_the_number_and_no_two_are_neighbours(number: int) -> None:
    digits = list(signed_digits(number))
    assert sum((-1 if minus else 1) << shift for shift, minus in digits) == number
    places = [shift for shift, _ in digits]
    assert all(later - earlier > 1 for earlier, later in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("low", "high", "bits"), [(0, 0, 1), (0, 1, 1), (0, 255, 8), (-1, 0, 1), (-128, 127, 8), (-129, 5, 9)]
)
def test_bits_between_two_ends(low: int, high: int, bits: int) -> None:
    assert width(low, high) == bits
