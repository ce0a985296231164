"""Turns of the two sides: each batch once and in order, sides alternate, nothing counted that a backlog made."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.order.alternation import Alternation, BatchSource, Plan, Stopwatch, Walk, counted_part, plan
from stoker.records.versus import LEAST_BATCHES, LEAST_ROUND, compare, least_batches


@dataclass
class Loader:
    """A program that takes every batch of some iterations, on a virtual clock."""

    alternation: Alternation
    ours_s: float = 0.01
    plain_s: float = 0.02
    workers: int = 2
    now_s: float = 0.0
    sides: list[BatchSource | None] = field(default_factory=list[BatchSource | None])

    def iterate(self, length: int, *, until: int | None = None, reserve: int = 0, known: bool = True) -> None:
        """Takes the batches of an iteration, up to ``until``."""
        walk = Walk(self.alternation, last=length - reserve if known else None, cold=False)
        walk.next_turn(0)
        for number in range(length if until is None else until):
            if walk.turn is not None and number == walk.turn.end:
                walk.next_turn(number)
            side = walk.turn.side if walk.turn is not None else None
            self.now_s += self.plain_s if side is BatchSource.PLAIN else self.ours_s
            walk.delivered(self.now_s, 32, self.workers)
            self.sides.append(side)
        if walk.turn is not None and walk.turn.end == length:
            walk.next_turn(length)


lengths = st.lists(st.integers(1, 150), min_size=1, max_size=12)


@given(batches=st.integers(LEAST_BATCHES, 1000), lengths=lengths, known=st.booleans())
def test_rounds_are_whole_and_alternate(batches: int, lengths: list[int], known: bool) -> None:
    rounds = plan(batches, length=max(lengths) if known else None, reserve=0, workers=1)
    if isinstance(rounds, str):
        assert max(lengths) < 2 * LEAST_ROUND
        return
    loader = Loader(Alternation(rounds), workers=1)
    size = rounds.round_batches
    for length in lengths:
        loader.sides.clear()
        loader.iterate(length, known=known)
        compared = [side for side in loader.sides if side is not None]
        assert loader.sides[: len(compared)] == compared  # what is not compared comes last
        for start in range(0, len(compared), size):
            assert set(compared[start : start + size]) == {(BatchSource.OURS, BatchSource.PLAIN)[start // size % 2]}
        assert not known or len(compared) % (2 * size) == 0
    assert loader.alternation.spent <= batches
    assert all(pair.counts for pair in loader.alternation.pairs)


def test_the_ratio_is_that_of_the_sides() -> None:
    assert plan(200, length=100, reserve=0, workers=2) == Plan(round_batches=16, batches=200)
    loader = Loader(Alternation(Plan(round_batches=16, batches=200)))
    for _ in range(3):
        loader.iterate(100)
    assert not loader.alternation.over or len(loader.alternation.pairs) == 5
    found = compare(loader.alternation.pairs)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert found.ours.samples_per_s == pytest.approx(3200)


def test_pairs_that_are_left_half_way_are_forgotten() -> None:
    loader = Loader(Alternation(Plan(round_batches=20, batches=240)))
    for _ in range(5):
        loader.iterate(100, until=30)
    assert loader.alternation.pairs == []
    assert loader.alternation.spent == 150


def test_what_starts_slowly_is_warm_up() -> None:
    alternation = Alternation(Plan(round_batches=20, batches=1000))
    for cold, counts in [(False, False), (True, False), (False, True)]:
        walk = Walk(alternation, last=None, cold=cold)
        found = None
        for number in range(0, 60, 20):
            found = walk.next_turn(number) or found
            for _ in range(20):
                walk.delivered(1.0 * number, 1, 1)
        assert (found is not None) is counts


@given(size=st.integers(1, 300), first=st.integers(0, 80), last=st.integers(0, 80))
def test_neither_the_filling_of_a_queue_nor_its_end_counts(size: int, first: int, last: int) -> None:
    lead, count = counted_part(size, first, last)
    assert lead >= max(1, first)
    if count:
        assert lead + count + max(1, last) <= size
        assert count >= max(1, last)
        assert first != last or count % max(1, last) == 0
    else:
        assert size < max(1, first) + 2 * max(1, last)


@given(size=st.integers(10, 60), first=st.integers(0, 8), growth=st.integers(0, 4), at=st.integers(0, 60))
def test_what_counts_is_what_the_policy_saw_at_most(size: int, first: int, growth: int, at: int) -> None:
    watch = Stopwatch()
    shown: list[int] = []
    for number in range(size):
        if watch.is_steady(size):
            shown.append(number)
        watch.delivered(float(number), 1, first + growth * (number >= at))
    done = watch.stop(size)
    lead, count = counted_part(size, watch.workers[0], watch.workers[-1])
    assert done.batches == count
    assert done.seconds == pytest.approx(count)
    if not growth:
        assert shown == list(range(lead, lead + count))


def test_a_round_in_which_a_delivery_failed_does_not_count() -> None:
    watch = Stopwatch()
    for number in range(15):
        watch.delivered(float(number), 1, 1)
    assert watch.stop(16).batches == 0
    assert Stopwatch().stop(16).batches == 0


@pytest.mark.parametrize(
    ("length", "reserve", "workers", "words"),
    [
        (None, 0, 8, f"8 declared workers need longer rounds; `--versus-plain {least_batches(8)}` would do"),
        (19, 0, 1, "an iteration of 19 batches is too short for two rounds of 10"),
        (24, 5, 1, "an iteration of 24 batches is too short for two rounds of 10"),
    ],
)
def test_what_cannot_be_compared_says_why(length: int | None, reserve: int, workers: int, words: str) -> None:
    assert plan(200, length=length, reserve=reserve, workers=workers) == words


@given(batches=st.integers(LEAST_BATCHES, 10**6), workers=st.integers(0, 64))
def test_what_a_refusal_names_would_do(batches: int, workers: int) -> None:
    found = plan(batches, length=None, reserve=0, workers=workers)
    if isinstance(found, str):
        assert batches < least_batches(workers)
        assert isinstance(plan(least_batches(workers), length=None, reserve=0, workers=workers), Plan)
