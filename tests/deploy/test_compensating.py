"""Rounding with compensation against rounding to nearest, and moments of patches against patches that torch unfolds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from stoker.deploy.floating.operations import FloatConvolution, FloatLinear, FloatScale
from stoker.deploy.floating.patches import PatchMoments, PatchTotals, patches_of
from stoker.deploy.lowering.compensating import compensated_rows
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.rounding import RoundedRows, nearest_rows, round_weights
from stoker.deploy.lowering.roundings import Roundings

GRID = Grid(bits=8, signed=True, scale=0.01, zero_point=3)


def problem(seed: int, groups: int, count: int, inputs: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of weights, and the second moment of correlated inputs, some of which never change."""
    chance = np.random.default_rng(seed)
    mixed = chance.normal(size=(groups, inputs, inputs)) * (chance.random((groups, 1, inputs)) > 0.2)
    x = chance.normal(size=(groups, samples, inputs)) @ mixed + chance.normal(size=(groups, 1, inputs))
    return chance.normal(size=(groups * count, inputs)), x.transpose(0, 2, 1) @ x / samples


def damped_error(rows: np.ndarray, made: RoundedRows, second: np.ndarray) -> np.ndarray:
    """By row, with a hundredth of the mean diagonal on it."""
    groups, inputs = second.shape[:2]
    away = (made.whole * made.scales[:, None] - rows).reshape(groups, -1, inputs)
    mean = np.trace(second, axis1=1, axis2=2) / inputs
    added = np.where(mean > 0, 0.01 * mean, 1.0)[:, None, None] * np.eye(inputs)
    return np.einsum("gri,gij,grj->gr", away, second + added, away).ravel()


@given(
    seed=st.integers(0, 2**16), groups=st.integers(1, 3), count=st.integers(1, 5), inputs=st.integers(1, 40),
    samples=st.integers(1, 60), bits=st.integers(2, 8), scaled=st.booleans(),
)  # fmt: skip
@settings(max_examples=60)
def test_it_is_never_worse_than_nearest_and_stays_in_range(
    seed: int, groups: int, count: int, inputs: int, samples: int, bits: int, scaled: bool
) -> None:
    rows, second = problem(seed, groups, count, inputs, samples)
    given_scales = np.random.default_rng(seed).uniform(0.05, 1.0, len(rows)) if scaled else None
    plain = nearest_rows(rows, bits, given_scales)
    made = compensated_rows(rows, bits, second, given_scales)
    assert (damped_error(rows, made, second) <= damped_error(rows, plain, second) * (1 + 1e-9) + 1e-12).all()
    most = (1 << (bits - 1)) - 1
    assert np.abs(made.whole.astype(int)).max() <= most
    if given_scales is not None:
        assert np.array_equal(made.scales, given_scales)
    again = compensated_rows(rows, bits, second, given_scales)
    assert again.whole.tobytes() == made.whole.tobytes()
    assert again.scales.tobytes() == made.scales.tobytes()


def test_it_is_far_better_where_inputs_are_correlated() -> None:
    rows, second = problem(0, 1, 50, 40, 400)
    for bits in (2, 3, 4):
        plain, made = (damped_error(rows, each, second).sum()
                       for each in (nearest_rows(rows, bits), compensated_rows(rows, bits, second)))  # fmt: skip
        assert made < 0.6 * plain


def test_two_inputs_that_are_equal_share_their_error() -> None:
    made = compensated_rows(np.array([[0.4, 0.4]]), 3, np.ones((1, 2, 2)), np.array([1.0]))
    assert sorted(made.whole[0].tolist()) == [0, 1]


def test_the_first_inputs_are_those_that_count_most() -> None:
    """The reference: one input at a time by the inverse, rows of what is left updated as in the paper."""
    rows, second = problem(3, 1, 6, 20, 100)
    made = compensated_rows(rows, 3, second, np.full(6, 0.4))
    order = np.argsort(-np.diagonal(second[0]), kind="stable")
    damped = second[0] + 0.01 * np.trace(second[0]) / 20 * np.eye(20)
    upper = np.linalg.cholesky(np.linalg.inv(damped[np.ix_(order, order)])).T
    left, whole = rows[:, order].copy(), np.zeros((6, 20))
    for at in range(20):
        whole[:, at] = np.clip(np.rint(left[:, at] / 0.4), -3, 3)
        error = (left[:, at] - whole[:, at] * 0.4) / upper[at, at]
        left[:, at:] -= error[:, None] * upper[at, at:]
    wanted = np.empty_like(whole)
    wanted[:, order] = whole
    taken = (made.whole == wanted).all(axis=1)
    plain = nearest_rows(rows, 3, np.full(6, 0.4))
    assert taken.sum() >= 4
    assert (taken | (made.whole == plain.whole).all(axis=1)).all()


@given(seed=st.integers(0, 2**16), bits=st.integers(2, 8))
@settings(max_examples=25)
def test_rows_on_a_grid_stay_as_they_are(seed: int, bits: int) -> None:
    chance = np.random.default_rng(seed)
    most = (1 << (bits - 1)) - 1
    whole = chance.integers(-most, most + 1, size=(6, 12))
    whole[:, 0] = most
    scales = chance.uniform(0.01, 2.0, 6)
    _, second = problem(seed, 2, 3, 12, 30)
    for given_scales in (None, scales):
        made = compensated_rows(whole * scales[:, None], bits, second, given_scales)
        assert np.array_equal(made.whole, whole)
        assert np.allclose(made.scales, scales, rtol=1e-12, atol=0)


def test_rows_of_zeros_and_inputs_without_any_change() -> None:
    rows = np.zeros((4, 5))
    rows[1] = [0.3, -1.0, 0.2, 0.9, 0.1]
    made = compensated_rows(rows, 4, np.zeros((1, 5, 5)))
    plain = nearest_rows(rows, 4)
    assert np.array_equal(made.whole, plain.whole)
    assert (made.scales > 0).all()


def test_a_moment_that_is_not_quite_positive_is_damped_more() -> None:
    second = np.ones((1, 6, 6)) - 0.2 * np.eye(6)
    second[0, 0, 0] = -1.0
    made = compensated_rows(np.random.default_rng(0).normal(size=(3, 6)), 4, second)
    assert np.abs(made.whole).max() <= 7


def test_a_least_number_of_its_own() -> None:
    rows, second = problem(5, 1, 8, 10, 50)
    made = compensated_rows(rows, 3, second, np.full(8, 0.2), -4)
    assert made.whole.min() == -4
    assert made.whole.max() == 3


def near(found: np.ndarray | None, wanted: np.ndarray) -> bool:
    """Within single precision."""
    return found is not None and np.allclose(found, wanted, atol=1e-5)


def convolution(weight: np.ndarray, **geometry: Any) -> FloatConvolution:
    base: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1, "flat": False}
    return FloatConvolution(name="c", sources=("x",), weight=weight, bias=np.zeros(len(weight)), **(base | geometry))


@pytest.mark.parametrize(
    ("groups", "shape", "geometry"),
    [
        (1, (6, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
        (1, (6, 4, 3, 2), {"stride": (2, 1), "padding": (0, 1, 2, 0), "dilation": (1, 2)}),
        (2, (6, 2, 3, 3), {"stride": (2, 2), "padding": (1, 1, 1, 1)}),
        (4, (8, 1, 3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}),
        (1, (6, 4, 1, 3), {"padding": (0, 0, 1, 1), "stride": (1, 2), "flat": True}),
        (4, (4, 1, 1, 5), {"padding": (0, 0, 4, 0), "dilation": (1, 1), "flat": True}),
    ],
)
def test_moments_are_those_of_patches_that_torch_unfolds(
    groups: int, shape: tuple[int, ...], geometry: dict[str, Any]
) -> None:
    chance = np.random.default_rng(1)
    layer = convolution(chance.normal(size=shape), groups=groups, **geometry)
    x = chance.normal(size=(5, 4, 9) if layer.flat else (5, 4, 9, 7)) + 1.0
    totals = PatchTotals(layer)
    for part in (x[:3], x[3:]):
        found = patches_of(layer, part, chance)
        assert found is not None
        totals.add(found)
    moments = totals.moments()
    assert moments is not None
    image = torch.tensor(x[:, :, None] if layer.flat else x)
    top, bottom, left, right = layer.padding
    padded = functional.pad(image, (left, right, top, bottom))
    kernel = (shape[2], shape[3])
    columns = functional.unfold(padded, kernel, dilation=layer.dilation, stride=layer.stride).numpy()
    rows = (
        columns.reshape(5, groups, -1, columns.shape[2]).transpose(1, 0, 3, 2).reshape(groups, -1, np.prod(shape[1:]))
    )
    mean = rows.mean(axis=1)
    assert np.allclose(moments.mean, mean)
    covariance = np.stack([np.cov(each.T, bias=True).reshape(mean.shape[1], -1) for each in rows])
    assert near(moments.second(centred=True), covariance)
    second = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    assert near(moments.second(centred=False), second)


def test_moments_of_linear_layers_and_scales() -> None:
    chance = np.random.default_rng(1)
    x = chance.normal(size=(6, 5, 3)) + 2.0
    linear = FloatLinear(name="l", sources=("x",), weight=np.ones((2, 3)), bias=np.zeros(2))
    scale = FloatScale(name="s", sources=("x",), factor=np.ones(5), offset=np.zeros(5))
    for layer, rows in ((linear, x.reshape(1, -1, 3)), (scale, x.transpose(1, 0, 2).reshape(5, -1, 1))):
        totals = PatchTotals(layer)
        found = patches_of(layer, x, chance)
        assert found is not None
        totals.add(found)
        moments = totals.moments()
        assert moments is not None
        assert np.allclose(moments.mean, rows.mean(axis=1))
        assert near(moments.second(centred=False), rows.transpose(0, 2, 1) @ rows / rows.shape[1])
    assert patches_of(linear, x.transpose(0, 2, 1), chance) is None
    assert patches_of(scale, x.transpose(0, 2, 1), chance) is None
    assert patches_of(convolution(np.ones((2, 5, 3, 3))), x, chance) is None
    assert PatchTotals(linear).moments() is None


def test_patches_of_a_batch_are_bounded_and_the_same_each_time() -> None:
    layer = convolution(np.ones((2, 64, 3, 3)))
    x = np.random.default_rng(0).normal(size=(4, 64, 40, 40))
    first, second = (patches_of(layer, x, np.random.default_rng(0)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.size <= 1 << 20
    assert np.array_equal(first, second)


def test_a_patch_that_is_too_wide_has_a_mean_alone_and_is_rounded_to_nearest() -> None:
    layer = FloatLinear(name="l", sources=("x",), weight=np.ones((1, 5000)), bias=np.zeros(1))
    totals = PatchTotals(layer)
    totals.add(np.random.default_rng(0).normal(size=(3, 1, 5000)))
    moments = totals.moments()
    assert moments is not None
    assert moments.covariance is None
    assert moments.mean.shape == (1, 5000)
    rows = np.random.default_rng(0).normal(size=(2, 5000))
    by = Roundings().of("l", "compensated", moments, centred=True)
    assert np.array_equal(by(rows, 4, None, None).whole, nearest_rows(rows, 4).whole)


def test_what_was_rounded_is_remembered_by_width_scales_and_moment() -> None:
    rows, second = problem(0, 1, 4, 6, 50)
    moments = PatchMoments(mean=np.ones((1, 6)), covariance=second.astype(np.float32))
    roundings = Roundings()
    made = roundings.of("l", "compensated", moments, centred=True)(rows, 4, None, None)
    again = roundings.of("l", "compensated", moments, centred=True)
    assert again(rows, 4, None, None) is made
    others = [
        again(rows, 3, None, None), again(rows, 4, np.ones(4), None),
        roundings.of("l", "compensated", moments, centred=False)(rows, 4, None, None),
        roundings.of("l", "nearest", moments, centred=True)(rows, 4, None, None),
        roundings.of("m", "compensated", moments, centred=True)(rows, 4, None, None),
    ]  # fmt: skip
    assert all(each is not made for each in others)
    for width in range(100):  # the memory is bounded, and holds what was used last
        again(rows, 4, np.full(4, 1.0 + width), None)
        assert again(rows, 4, None, None) is made


def test_the_bias_takes_the_mean_error_of_each_group() -> None:
    chance = np.random.default_rng(2)
    weight, means = chance.normal(size=(6, 2, 3, 3)), chance.normal(size=(3, 18))
    made = round_weights(weight, np.zeros(6), GRID, 3, means=means)
    whole = made.weight.reshape(6, -1).astype(np.float64)
    bias = (made.bias + GRID.zero_point * whole.sum(axis=1)) * made.scales * GRID.scale
    error = (whole * made.scales[:, None] - weight.reshape(6, -1)).reshape(3, 2, 18)
    mean = (error * means[:, None]).sum(axis=2).ravel()
    assert np.abs(mean + bias).max() <= 0.5 * (made.scales * GRID.scale).max() * (1 + 1e-9)


def test_a_large_bias_raises_the_scale() -> None:
    rows, second = problem(4, 1, 3, 5, 50)
    moments = PatchMoments(mean=np.zeros((1, 5)), covariance=second.astype(np.float32))
    by = Roundings().of("l", "compensated", moments, centred=True)
    bias = np.array([0.0, 1e6, 0.0])
    made = round_weights(rows, bias, GRID, 8, by=by)
    assert made.scales[1] == pytest.approx(1e6 / (GRID.scale * (1 << 24)))
    assert np.abs(made.bias).max() <= (1 << 24) + 3 * 127 * 5
