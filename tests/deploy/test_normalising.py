"""Roots, divisions, layer norm and softmax against exact rationals; a softmax's logarithm against its bound."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.arithmetic.normalising import integer_root, layer_norm, softmax
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.floating.operations import FloatSoftmax
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import IntegerValue, ModelPort
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.normalising import write_log_softmax
from stoker.deploy.lowering.writing import Writer

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
    by_value = data.draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers))))
    operation = op.Softmax(
        source="x", output="y", table="t", mask=None if mask is None else "m", counts=None if by_value is None else "c"
    )
    constants = {"t": table} if mask is None else {"t": table, "m": np.array(mask, np.int8)}
    value = [] if by_value is None else [np.array([by_value], np.int32)]
    found = softmax(operation, np.array([numbers]), SHARES, constants, *value)[0].tolist()
    counts = [all(each) for each in zip(mask or [True] * len(numbers), by_value or [True] * len(numbers), strict=True)]
    if not any(counts):
        assert found == [0] * len(numbers)
        return
    elsewhere = np.where(counts, numbers, data.draw(st.integers(-128, 127)))
    assert softmax(operation, elsewhere[None], SHARES, constants, *value)[0].tolist() == found
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


def log_softmax_of(source: Grid, result: Grid | None, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Whole numbers and logarithms for rows of whole numbers, and the step of the logarithms."""
    to = Writer()
    to.value("x", rows.shape[1:], source)
    out = write_log_softmax(to, FloatSoftmax(name="y", sources=("x",), log=True), "x", result)
    ports = [
        ModelPort(name=name, value=name, dtype="float32", shape=rows.shape[1:], order=tuple(range(rows.ndim - 1)))
        for name in ("x", out)
    ]
    graph = IntegerGraph(
        inputs=(ports[0],), outputs=(ports[1],), values=to.values, operations=tuple(to.operations),
        constants=to.constants,
    )  # fmt: skip
    graph = checked(with_ranges(graph))
    found = NumpyEngine(graph).integers({"x": rows.astype(np.int32)})[out]
    value = graph.values[out]
    return found, (found.astype(np.float64) - value.zero_point) * value.scale, value.scale


@given(
    size=st.integers(1, 40), seed=st.integers(0, 2**31), bits=st.integers(4, 8), signed=st.booleans(),
    scale=st.floats(1e-4, 4.0), spread=st.floats(0.02, 1.0), wide=st.booleans(),
)  # fmt: skip
def test_a_log_softmax_is_within_its_bound(
    size: int, seed: int, bits: int, signed: bool, scale: float, spread: float, wide: bool
) -> None:
    """What `docs/design/deploy.md` says: D/2^16 of the exponentials, D/2^B of the largest share, two steps."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    chance = np.random.default_rng(seed)
    rows = low + np.rint((high - low) * chance.random((20, 2, size)) * spread).astype(np.int64)
    rows[0], rows[1, :, 0] = high, low
    real = (rows - rows.max(axis=-1, keepdims=True)) * scale
    real -= np.log(np.exp(real).sum(axis=-1, keepdims=True))
    result = None if wide else Grid(bits=8, signed=True, scale=max(-real.min(), 1.0) / 255, zero_point=127)
    whole, found, step = log_softmax_of(Grid(bits=bits, signed=signed, scale=scale, zero_point=low), result, rows)
    share_bits = min(16, 8 + (size - 1).bit_length())
    assert np.abs(found - real).max() <= size * 2.0**-16 + size * 2.0**-share_bits + 2 * step
    if wide and step <= scale:
        assert ((whole[..., :, None] < whole[..., None, :]) == (rows[..., :, None] < rows[..., None, :])).all()


@pytest.mark.parametrize("size", [2, 10, 257, 1000])
def test_log_softmaxes_of_many_classes_are_close_to_float(size: int) -> None:
    grid = Grid(bits=8, signed=True, scale=0.1, zero_point=0)
    rows = np.clip(np.random.default_rng(size).normal(0, 25, (200, size)).round(), -128, 127).astype(np.int64)
    rows[:100, 0] = 127
    real = (rows - rows.max(axis=-1, keepdims=True)) * 0.1
    real -= np.log(np.exp(real).sum(axis=-1, keepdims=True))
    _, found, step = log_softmax_of(grid, None, rows)
    assert step < 0.002
    assert np.abs(found - real).max() < 0.01
    assert abs((found - real).mean()) < 0.002
