"""Shares of weights: all are dealt, evenly, and cut only where they must be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.placement.shares import cut_of, owners_of

sizes_of_weights = st.lists(st.integers(1, 10_000), min_size=1, max_size=30)


def loads_of(sizes: list[int], owners: list[int | None], ranks: int) -> list[float]:
    loads = [0.0] * ranks
    for size, owner in zip(sizes, owners, strict=True):
        for rank in range(ranks) if owner is None else [owner]:
            loads[rank] += size / ranks if owner is None else size
    return loads


@given(sizes_of_weights, st.integers(2, 8))
def test_weights_that_may_be_cut_are_shared_evenly(sizes: list[int], ranks: int) -> None:
    loads = loads_of(sizes, owners_of(sizes, ranks, [True] * len(sizes)), ranks)
    assert max(loads) <= 1.01 * sum(sizes) / ranks + 1e-6


@given(sizes_of_weights, st.integers(2, 8))
def test_weights_that_may_not_be_cut_are_whole_and_the_largest_share_is_at_most_one_above_the_mean(
    sizes: list[int], ranks: int
) -> None:
    owners = owners_of(sizes, ranks, [False] * len(sizes))
    assert None not in owners
    assert max(loads_of(sizes, owners, ranks)) <= sum(sizes) / ranks + max(sizes)


def test_equal_weights_are_not_cut_and_a_large_one_is() -> None:
    assert owners_of([8, 8, 8, 8], 4, [True] * 4) == [0, 1, 2, 3]
    assert owners_of([100, 5, 5, 5, 5], 4, [True] * 5) == [None, 0, 1, 2, 3]


def test_what_comes_later_goes_to_the_rank_that_has_least() -> None:
    assert owners_of([3], 3, [True], [9, 6, 9]) == [1]


@given(st.integers(0, 100_000), st.integers(1, 16))
def test_cuts_cover_a_weight_and_lie_at_multiples_of_what_kernels_take_together(elements: int, ranks: int) -> None:
    cuts = [cut_of(elements, ranks, rank) for rank in range(ranks)]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == elements
    assert all(one[1] == other[0] for one, other in itertools.pairwise(cuts))
    assert all(start % 64 == 0 or start == elements for start, _ in cuts)
