import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.train.exchanging.checking import is_product

sizes = st.integers(1, 40)


def drawn(m: int, n: int, k: int, seed: int, scale: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(seed)
    left = torch.randn(k, m, generator=chance) * scale
    right = torch.randn(k, n, generator=chance)
    return left, right, torch.randn(n, generator=chance)


@given(m=sizes, n=sizes, k=sizes, seed=st.integers(0, 99), scale=st.sampled_from([1e-6, 1.0, 1e5]))
def test_a_product_is_one(m: int, n: int, k: int, seed: int, scale: float) -> None:
    left, right, vector = drawn(m, n, k, seed, scale)
    assert is_product(left.t() @ right, left, right, vector)


@given(m=sizes, n=sizes, k=sizes, seed=st.integers(0, 99))
def test_of_factors_that_cancel_too(m: int, n: int, k: int, seed: int) -> None:
    left, right, vector = drawn(m, n, k, seed, 1.0)
    left, right = torch.cat([left, left]), torch.cat([right, -right + 1e-4 * right])
    assert is_product(left.t() @ right, left, right, vector)


@given(m=sizes, n=st.integers(2, 40), k=sizes, seed=st.integers(0, 99))
def test_a_gradient_that_holds_more_is_none(m: int, n: int, k: int, seed: int) -> None:
    left, right, vector = drawn(m, n, k, seed, 1.0)
    weight = torch.randn(m, n, generator=torch.Generator().manual_seed(seed + 1))
    assert not is_product(left.t() @ right + 1e-2 * weight * k, left, right, vector)


@given(m=sizes, n=sizes, k=sizes, seed=st.integers(0, 99))
def test_results_rounded_to_16_bits_pass(m: int, n: int, k: int, seed: int) -> None:
    left, right, vector = drawn(m, n, k, seed, 1.0)
    left, right = left.bfloat16(), right.bfloat16()
    rounded = (left.float().t() @ right.float()).bfloat16()
    assert is_product(rounded.float(), left, right, vector)


def test_no_rows_are_a_product_of_zero() -> None:
    left, right, vector = torch.zeros(0, 3), torch.zeros(0, 4), torch.ones(4)
    assert is_product(torch.zeros(3, 4), left, right, vector)
    assert not is_product(torch.ones(3, 4), left, right, vector)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_none(value: float) -> None:
    left, right, vector = drawn(3, 4, 5, 0, 1.0)
    gradient = left.t() @ right
    gradient[1, 2] = value
    assert not is_product(gradient, left, right, vector)
