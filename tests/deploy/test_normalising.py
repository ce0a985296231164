"""Roots, divisions, layer norm and softmax against exact rationals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.arithmetic.normalising import integer_root, layer_norm, softmax
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.values import IntegerValue

BY = op.Requantiser(multiplier=None, shift=0, zero_point=0, low=-128, high=127)
SHARES = IntegerValue(name="y", shape=(3,), bits=8, signed=False, scale=2.0**-8, zero_point=0, low=0, high=255)


@given(st.lists(st.one_of(st.integers(0, 2**62 - 1), st.integers(0, 2**31 - 1).map(lambda n: n * n)), min_size=1))
def test_roots_are_floors(numbers: list[int]) -> None:
    assert integer_root(np.array(numbers)).tolist() == [math.isqrt(each) for each in numbers]


def test_roots_beside_squares() -> None:
    roots = np.arange(1, 2**16, 7) ** 2
    for offset in (-1, 0, 1):
        assert integer_root(roots + offset).tolist() == [math.isqrt(int(each)) for each in roots + offset]


@given(st.lists(st.integers(-128, 127), min_size=2, max_size=32), st.integers(0, 5000))
def test_a_layer_norm_is_close_to_the_real_one(numbers: list[int], epsilon: int) -> None:
    size = len(numbers)
    norm = op.LayerNorm(
        source="x",
        output="y",
        gain="g",
        offset="o",
        epsilon=epsilon,
        root_bits=6,
        reciprocal_bits=40,
        normal_bits=10,
        requantiser=BY,
    )
    constants = {"g": np.ones(size, np.int64), "o": np.zeros(size, np.int64)}
    found = layer_norm(norm, np.array([numbers]), constants)[0]
    mean = Fraction(sum(numbers), size)
    variance = sum((each - mean) ** 2 for each in numbers) / size + Fraction(epsilon, size**3)
    if variance == 0:
        assert found.tolist() == [0] * size
        return
    for each, whole in zip(numbers, found.tolist(), strict=True):
        real = float(each - mean) / math.sqrt(variance) * 2**10
        # A step of rounding, and what the floor of a root of at least 2^6 loses.
        assert abs(whole - real) <= 1 + abs(real) / 50


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=20), st.data())
def test_shares_are_exact_divisions(numbers: list[int], data: st.DataObject) -> None:
    table = np.rint(65535 * np.exp(-np.arange(256) * 0.05)).astype(np.uint16)
    mask = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))))
    if mask is not None and not any(mask):
        mask[0] = True
    operation = op.Softmax(source="x", output="y", table="t", mask=None if mask is None else "m")
    constants = {"t": table} if mask is None else {"t": table, "m": np.array(mask, np.int8)}
    found = softmax(operation, np.array([numbers]), SHARES, constants)[0].tolist()
    counts = mask or [True] * len(numbers)
    largest = max(each for each, counted in zip(numbers, counts, strict=True) if counted)
    powers = [int(table[largest - each]) if counted else 0 for each, counted in zip(numbers, counts, strict=True)]
    total = sum(powers)
    for power, share in zip(powers, found, strict=True):
        exact = Fraction(power * 256, total)
        assert share == min(255, (exact + Fraction(total // 2, total)).__floor__())
        assert abs(share - exact) <= 1


def test_a_row_that_is_masked_but_for_one_has_one_share() -> None:
    operation = op.Softmax(source="x", output="y", table="t", mask="m")
    constants = {"t": np.full(256, 65535, np.uint16), "m": np.array([0, 1, 0])}
    assert softmax(operation, np.array([[127, -128, 5]]), SHARES, constants).tolist() == [[0, 255, 0]]


@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_constant_row_is_zero(size: int) -> None:
    norm = op.LayerNorm(
        source="x",
        output="y",
        gain="g",
        offset="o",
        epsilon=0,
        root_bits=6,
        reciprocal_bits=40,
        normal_bits=10,
        requantiser=BY,
    )
    constants = {"g": np.ones(size, np.int64), "o": np.zeros(size, np.int64)}
    assert not layer_norm(norm, np.full((1, size), 7), constants).any()
