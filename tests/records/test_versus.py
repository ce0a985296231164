"""The ratio that timed rounds show: its spread, its words, and when there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.records.versus import LEAST_BATCHES, MIN_PAIRS, Pair, Round, compare, describe, least_batches, shortfall


def a_round(seconds: float, *, batches: int = 10, workers: tuple[int, int] = (2, 2), samples: int = 320) -> Round:
    first, last = workers
    return Round(workers_from=first, workers_to=last, batches=batches, samples=samples, seconds=seconds)


def pairs_of(*ratios: float) -> list[Pair]:
    return [Pair(round_batches=16, ours=a_round(1.0), plain=a_round(ratio)) for ratio in ratios]


def test_the_ratio_is_the_median_with_its_spread() -> None:
    found = compare(pairs_of(2.0, 2.4, 2.2, 0.9, 2.3))
    assert found is not None
    assert (found.ratio, found.ratio_least, found.ratio_most, found.pairs) == pytest.approx((2.2, 0.9, 2.4, 5))
    assert found.plain.batches_per_s == pytest.approx(10 / 2.2)


@given(st.lists(st.floats(0.01, 100.0), min_size=MIN_PAIRS, max_size=12))
def test_swapping_the_sides_turns_the_ratio_over(ratios: list[float]) -> None:
    pairs = pairs_of(*ratios)
    there = compare(pairs)
    back = compare([Pair(round_batches=16, ours=pair.plain, plain=pair.ours) for pair in pairs])
    assert there is not None
    assert back is not None
    assert there.ratio_least <= there.ratio <= there.ratio_most
    assert (back.ratio_least, back.ratio_most) == pytest.approx((1 / there.ratio_most, 1 / there.ratio_least))
    if len(ratios) % 2:
        assert back.ratio == pytest.approx(1 / there.ratio)


def test_rounds_that_do_not_count_are_no_part_of_it() -> None:
    crowded = Pair(round_batches=16, ours=a_round(0.0, batches=0, workers=(2, 8)), plain=a_round(5.0))
    assert compare([*pairs_of(2.0, 2.0, 2.0, 2.0), crowded]) is None
    found = compare([crowded, *pairs_of(2.0, 2.0, 2.0, 2.0, 2.0)])
    assert found is not None
    assert (found.pairs, found.ratio, len(found.rounds)) == (5, 2.0, 6)


def test_too_few_pairs_say_what_is_missing() -> None:
    assert shortfall(pairs_of(2.0, 2.0)) == "it takes 5 pairs of rounds, and the program ended after 2"
    crowded = Pair(round_batches=16, ours=a_round(0.0, batches=0, workers=(2, 8)), plain=a_round(5.0))
    assert shortfall([crowded] * 5) == (
        "rounds of 16 batches are too short for 8 workers; `--versus-plain 288` would be enough"
    )


def test_the_words_are_the_same_whoever_is_faster() -> None:
    ours = [a_round(1.0, workers=(2, 4)), *[a_round(1.0, workers=(4, 4))] * 4]
    faster = compare([Pair(round_batches=16, ours=side, plain=a_round(2.31)) for side in ours])
    slower = compare([Pair(round_batches=16, ours=side, plain=a_round(0.93, workers=(0, 0))) for side in ours])
    assert faster is not None
    assert slower is not None
    assert describe(faster) == (
        "2.31x plain python (2.31x to 2.31x, 5 pairs of rounds of 16 batches): 320 samples/s with 2 → 4 workers, "
        "139 samples/s with torch's 2 workers"
    )
    assert describe(slower).startswith("0.93x plain python (0.93x to 0.93x, 5 pairs")
    assert describe(slower).endswith("344 samples/s without workers")


def test_batches_are_counted_where_samples_are_unknown() -> None:
    found = compare([Pair(round_batches=16, ours=a_round(1.0, samples=0), plain=a_round(2.0, samples=0))] * 5)
    assert found is not None
    assert found.ours.samples_per_s is None
    assert "10.0 batches/s with 2 workers, 5.00 batches/s with torch's 2 workers" in describe(found)


def test_more_workers_need_more_batches() -> None:
    assert least_batches(1) == least_batches(3) == LEAST_BATCHES
    assert least_batches(8) == 288
