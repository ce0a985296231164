"""Certificates of plans: a proof that no plan is smaller, or a smaller plan."""

from __future__ import annotations

import itertools

import pytest

from stoker.core.placement.offsets import place_buffers
from stoker.perf.memory.certificate import certify

UNIT = 512
# Units, birth and death; found by drawing lives that fill each moment alike.
UNREACHABLE = [
    (6, 0, 3), (2, 0, 2), (1, 2, 4), (1, 2, 5), (5, 3, 5), (1, 3, 6), (1, 4, 6), (6, 5, 8), (2, 6, 7), (2, 7, 8),
]  # fmt: skip
"""Eight units are alive at any moment, and no plan has fewer than nine."""


def in_bytes(lives: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    return [(size * UNIT, birth, death) for size, birth, death in lives]


def smallest(lives: list[tuple[int, int, int]], most: int) -> int:
    """Units of the smallest plan, by all orders of putting down: in some smallest plan each buffer rests on others."""
    best = most

    def put(left: frozenset[int], heights: tuple[int, ...], seen: set[tuple[frozenset[int], tuple[int, ...]]]) -> None:
        nonlocal best
        if max(heights) >= best or (left, heights) in seen:
            return
        seen.add((left, heights))
        if not left:
            best = max(heights)
        for each in left:
            size, birth, death = lives[each]
            top = max(heights[birth:death]) + size
            put(left - {each}, heights[:birth] + (top,) * (death - birth) + heights[death:], seen)

    put(frozenset(range(len(lives))), (0,) * max(death for _, _, death in lives), set())
    return best


def test_a_bound_that_no_plan_reaches_is_raised() -> None:
    pytest.importorskip("scipy")
    lives = in_bytes(UNREACHABLE)
    placed = place_buffers(lives)
    assert (placed.bound // UNIT, placed.size // UNIT) == (8, 9)
    found = certify(lives, placed)
    assert found.is_optimal
    assert found.bound == found.placement.size == 9 * UNIT
    assert smallest(UNREACHABLE, 10) == 9


def test_a_plan_that_can_be_smaller_is_replaced() -> None:
    pytest.importorskip("scipy")
    lives = in_bytes(UNREACHABLE[:5])
    # One buffer above the other, in the order of their births: a plan that wastes.
    tops = list(itertools.accumulate(size for size, _, _ in lives))
    placed = place_buffers(lives)
    waste = type(placed)((0, *tops[:-1]), tops[-1], placed.bound)
    found = certify(lives, waste)
    assert found.is_optimal
    assert found.placement.size == placed.size
    for (one, first), (two, second) in itertools.combinations(
        zip(lives, found.placement.offsets, strict=True), 2
    ):  # fmt: skip
        if one[1] < two[2] and two[1] < one[2]:
            assert first + one[0] <= second or second + two[0] <= first


def test_many_buffers_have_no_certificate_beyond_the_bound() -> None:
    lives = [(UNIT * (1 + place % 7), place, place + 40) for place in range(200)]
    placed = place_buffers(lives)
    worse = type(placed)(placed.offsets, placed.size + 1, placed.bound)
    found = certify(lives, worse)
    assert (found.placement, found.bound, found.is_optimal) == (worse, worse.bound, False)
