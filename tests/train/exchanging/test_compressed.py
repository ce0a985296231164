"""Sums that are not exact: what is kept between steps, so that nothing is lost for good."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.train.exchanging.compressed import HalvedSum, LowRankSum

SHAPES = st.tuples(st.integers(1, 12), st.integers(1, 12))


def halved(ranks: list[torch.Tensor], states: list[HalvedSum]) -> torch.Tensor | None:
    """The mean of all ranks by their states; None if it has to be made whole."""
    narrow = [state.narrowed([each], 1 / len(ranks)) for state, each in zip(states, ranks, strict=True)]
    if any(each is None for each in narrow):
        assert not any(each is not None for each in narrow)
        return None
    sums = torch.stack([each for each in narrow if each is not None]).sum(0)
    whole = [each.clone() for each in ranks]
    taken = {state.widen(sums, [each]) for state, each in zip(states, whole, strict=True)}
    if taken == {False}:
        return None
    assert taken == {True}
    return whole[0]


@given(st.floats(-30, 30), st.integers(0, 99))
def test_sums_of_16_bits_keep_their_digits_at_any_size(exponent: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = [HalvedSum(), HalvedSum()]
    for step in range(3):
        ranks = [torch.randn(50, generator=generator) * 10.0**exponent for _ in range(2)]
        mean = torch.stack(ranks).mean(0)
        found = halved(ranks, states)
        if step == 0:
            assert found is None
            for state in states:
                state.first(mean)
        else:
            assert found is not None
            assert float((found - mean).abs().max()) <= 2.0**-9 * float(torch.stack(ranks).abs().max())


@pytest.mark.parametrize(("value", "why"), [(1e9, "too large"), (float("inf"), "not finite")])
def test_what_overflows_is_left_and_counted(value: float, why: str) -> None:
    states = [HalvedSum(), HalvedSum()]
    for state in states:
        state.first(torch.ones(3))
    ranks = [torch.full((3,), value) for _ in states]
    assert halved(ranks, states) is None
    for state in states:
        state.overflowed(ranks[0])
    assert all(why in next(iter(state.doubts)) and not state.steps for state in states)
    # From here on its size is known, or nothing is.
    assert (states[0].narrowed([ranks[0]], 1.0) is None) == (value == float("inf"))


def test_a_sum_of_zeros_sets_no_scale() -> None:
    state = HalvedSum()
    state.first(torch.zeros(4))
    assert state.narrowed([torch.ones(4)], 0.5) is None


def stepped(gradients: list[torch.Tensor], states: list[LowRankSum]) -> torch.Tensor | None:
    """The mean that all ranks get; None if it has to be made whole."""
    left = torch.stack([state.left(each) for state, each in zip(states, gradients, strict=True)]).mean(0)
    rights = [state.right(left) for state in states]
    found = [each for each in rights if each is not None]
    if len(found) < len(states):
        assert not found
        return None
    right = torch.stack(found).mean(0)
    results = [each.clone() for each in gradients]
    for state, each in zip(states, results, strict=True):
        state.fill(each, right)
    assert all(torch.equal(each, results[0]) for each in results)
    return results[0]


@settings(max_examples=15)
@given(SHAPES, st.integers(1, 3), st.integers(0, 99))
def test_what_was_not_sent_is_sent_later(shape: tuple[int, int], ranks: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states = [LowRankSum("w", shape, 2) for _ in range(ranks)]
    sent, given_ = torch.zeros(shape), torch.zeros(shape)
    for _ in range(3):
        gradients = [torch.randn(shape, generator=generator) for _ in range(ranks)]
        given_ += torch.stack(gradients).mean(0)
        found = stepped(gradients, states)
        assert found is not None
        sent += found
    for _ in range(15):  # without new gradients the rest follows
        found = stepped([torch.zeros(shape) for _ in range(ranks)], states)
        assert found is not None
        sent += found
    assert torch.allclose(sent, given_, atol=1e-3), (sent - given_).abs().max()


@given(SHAPES, st.integers(0, 99))
def test_a_gradient_of_low_rank_is_sent_whole(shape: tuple[int, int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.outer(torch.randn(shape[0], generator=generator), torch.randn(shape[1], generator=generator))
    found = stepped([gradient, 3 * gradient], [LowRankSum("w", shape, 2) for _ in range(2)])
    assert found is not None
    assert torch.allclose(found, 2 * gradient, atol=1e-4 * float(gradient.norm()) + 1e-6)


def test_values_that_are_not_finite_leave_the_error_as_it_was() -> None:
    states = [LowRankSum("w", (4, 5), 1) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(4, 5, generator=generator) for _ in range(2)]
    first = stepped(gradients, states)
    bad = [gradients[0], torch.full((4, 5), float("nan"))]
    assert stepped(bad, states) is None
    zeros = [torch.zeros(4, 5) for _ in range(2)]
    rest = sum((found for _ in range(9) if (found := stepped(zeros, states)) is not None), torch.zeros(4, 5))
    assert first is not None
    assert torch.allclose(first + rest, torch.stack(gradients).mean(0), atol=1e-3)
    assert all(sum(state.doubts.values()) == 1 for state in states)
