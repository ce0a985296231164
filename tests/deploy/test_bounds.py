"""Accumulators hold what weights can bring about, and no more than that."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.arithmetic.computing import sums_of
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator, centred_squares, normal_bound, product_bits
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import IntegerValue, bits_of

BY = op.Requantiser(multiplier=None, shift=0, zero_point=0, low=-128, high=127)


def value(name: str, shape: tuple[int, ...], low: int, high: int, zero: int = 0) -> IntegerValue:
    signed = low < 0
    return IntegerValue(name=name, shape=shape, bits=16, signed=signed, scale=1.0, zero_point=zero, low=low, high=high)


@given(
    weights=st.lists(st.lists(st.integers(-128, 127), min_size=4, max_size=4), min_size=1, max_size=5),
    ends=st.tuples(st.integers(-128, 127), st.integers(-128, 127)).map(sorted),
    bias=st.integers(-(2**20), 2**20),
)
def test_both_ends_of_a_sum_are_attained(weights: list[list[int]], ends: list[int], bias: int) -> None:
    weight = np.array(weights, np.int8)
    low, high = ends
    values = {"x": value("x", (4,), low, high), "y": value("y", (len(weight),), -128, 127)}
    layer = op.Linear(source="x", output="y", weight="w", weight_bits=8, bias="b", requantiser=BY)
    constants = {"w": weight, "b": np.full(len(weight), bias)}
    graph = IntegerGraph(inputs=(), outputs=(), values=values, operations=(layer,), constants=constants)
    found = accumulator(layer, values, constants)
    for channel, row in enumerate(weight):
        for wanted, adversary in (
            (found.high, np.where(row > 0, high, low)),
            (found.low, np.where(row > 0, low, high)),
        ):
            sums = sums_of(layer, [adversary[None]], graph)
            assert sums[0, channel] == wanted[channel]
            order = np.random.default_rng(channel).permutation(4)
            partial = bias + np.cumsum(row[order].astype(np.int64) * adversary[order])
            assert found.partial_low <= partial.min()
            assert partial.max() <= found.partial_high
    assert -(1 << (found.bits - 1)) <= found.partial_low <= found.partial_high < 1 << (found.bits - 1)


def test_padding_counts_where_there_is_some() -> None:
    source = value("x", (2, 2, 1), 5, 9, zero=0)
    constants = {"w": np.ones((1, 3, 3, 1), np.int8), "b": np.zeros(1, np.int64)}
    layer = op.Convolution(
        source="x", output="y", weight="w", weight_bits=8, bias="b", requantiser=BY, padding=(1, 1, 1, 1)
    )
    found = accumulator(layer, {"x": source}, constants)
    assert (found.low.tolist(), found.high.tolist()) == ([0], [81])


@given(st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
def test_bits_are_the_fewest(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    bits = bits_of(low, high)
    assert -(1 << (bits - 1)) <= low <= high < 1 << (bits - 1)
    assert bits == 1 or not -(1 << (bits - 2)) <= low <= high < 1 << (bits - 2)


def test_products_are_as_wide_as_the_multiplier_makes_them() -> None:
    values = {"x": value("x", (1,), 0, 255)}
    constants = {"w": np.array([[127]], np.int8), "b": np.zeros(1, np.int64), "m": np.array([65535], np.uint16)}
    by = op.Requantiser(multiplier="m", shift=16, zero_point=0, low=0, high=127)
    layer = op.Linear(source="x", output="y", weight="w", weight_bits=8, bias="b", requantiser=by)
    found = accumulator(layer, values, constants)
    assert product_bits(found, by, constants) == (255 * 127 * 65535 + (1 << 15)).bit_length() + 1


@given(st.lists(st.integers(-128, 127), min_size=2, max_size=40))
def test_squares_and_normalised_numbers_keep_their_bounds(numbers: list[int]) -> None:
    size, row = len(numbers), np.array(numbers, np.int64)
    source = value("x", (size,), -128, 127)
    centred = row * size - row.sum()
    assert int((centred * centred).sum()) <= centred_squares(source, size)
    norm = op.LayerNorm(
        source="x",
        output="y",
        gain="g",
        offset="o",
        epsilon=0,
        root_bits=2,
        reciprocal_bits=40,
        normal_bits=10,
        requantiser=BY,
    )
    constants = {"g": np.ones(size, np.int64), "o": np.zeros(size, np.int64)}
    graph = IntegerGraph(inputs=(), outputs=(), values={"x": source}, operations=(norm,), constants=constants)
    assert np.abs(sums_of(norm, [row[None]], graph)).max() <= normal_bound(norm, size)
