"""Policies against simulated epochs: no files, no time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import xxhash

from stoker.cache.store.layout import Policy
from stoker.cache.store.reclaim.epoch_clock import NUM_CELLS, ReadClock
from stoker.cache.store.reclaim.eviction import HOLLOW_FRAC, FileState, choose


@dataclass
class Segment:
    number: int
    group: int
    pages: list[int] = field(default_factory=list[int])
    last_read: int = 0
    reads: int = 0
    passed: int = 0


@dataclass
class Cache:
    """Segments of `per_segment` pages under a policy, with the clock that the store uses."""

    capacity: int
    policy: Policy = "epoch"
    per_segment: int = 16
    group: int = 7
    clock: ReadClock = field(default_factory=lambda: ReadClock([0] * NUM_CELLS))
    segments: dict[int, Segment] = field(default_factory=dict[int, Segment])
    where: dict[int, Segment] = field(default_factory=dict[int, Segment])
    created: int = 0
    tried: int = -16
    open: Segment | None = None

    def read(self, page: int) -> bool:
        clock = self.clock
        clock.advance(1)
        tag = xxhash.xxh3_64_intdigest(page.to_bytes(4, "little"))
        if not tag & clock.sample_mask:
            clock.ask([tag])
        segment = self.where.get(page)
        if segment is not None:
            segment.last_read = clock.reads
            segment.reads += 1
            clock.note_hits({segment.group: 1})
            return True
        self.put(page)
        return False

    def put(self, page: int) -> None:
        if self.open is None or len(self.open.pages) >= self.per_segment:
            if not self.make_room():
                return
            self.created += 1
            self.open = self.segments[self.created] = Segment(self.created, self.group)
        self.open.pages.append(page)
        self.open.last_read = self.clock.reads
        self.where[page] = self.open

    def make_room(self) -> bool:
        need = (len(self.segments) + 1) * self.per_segment - self.capacity
        if need <= 0:
            return True
        if self.clock.reads < self.tried + 16:
            return False
        self.tried = self.clock.reads
        files = [
            FileState(s.number, s.number, s.group, self.per_segment, len(s.pages), s.last_read, 0.0, s.reads, s.passed)
            for s in self.segments.values()
        ]
        choice = choose(self.policy, files, self.clock, need, 1e9, force=False)
        for file in choice.spared:
            self.segments[file.number].passed = self.clock.reads
        for file in choice.victims:
            for page in self.segments.pop(file.number).pages:
                del self.where[page]
        return sum(file.allocated for file in choice.victims) >= need

    def epoch(self, pages: Sequence[int]) -> float:
        return sum(self.read(page) for page in pages) / len(pages)


def shuffled(pages: Sequence[int], rng: random.Random) -> list[int]:
    return rng.sample(pages, len(pages))


@pytest.mark.parametrize("frac", [0.25, 0.5, 0.75])
def test_shuffled_epochs_hit_what_fits(frac: float) -> None:
    rng = random.Random(1)
    data = range(2000)
    cache = Cache(int(frac * len(data)))
    ratios = [cache.epoch(shuffled(data, rng)) for _ in range(6)]
    assert min(ratios[1:]) >= 0.95 * frac


@pytest.mark.parametrize("frac", [0.25, 0.5, 0.75])
def test_the_second_epoch_of_another_data_set_hits_what_fits(frac: float) -> None:
    rng = random.Random(2)
    cache = Cache(int(frac * 2000))
    for _ in range(5):
        cache.epoch(shuffled(range(2000), rng))
    ratios = [cache.epoch(shuffled(range(10_000, 12_000), rng)) for _ in range(3)]
    assert min(ratios[1:]) >= 0.95 * frac


def test_a_data_set_that_fitted_makes_place_for_another() -> None:
    rng = random.Random(3)
    cache = Cache(3000)
    assert [cache.epoch(shuffled(range(3000 - 16), rng)) for _ in range(5)] == [0.0, 1.0, 1.0, 1.0, 1.0]
    ratios = [cache.epoch(shuffled(range(10_000, 12_900), rng)) for _ in range(3)]
    assert min(ratios[1:]) >= 0.95


def test_what_was_read_once_makes_place_for_what_is_read_again() -> None:
    rng = random.Random(4)
    cache = Cache(1000)
    cache.epoch(shuffled(range(3000), rng))
    ratios = [cache.epoch(shuffled(range(10_000, 12_000), rng)) for _ in range(8)]
    assert ratios[-1] >= 0.95 * 0.5


@pytest.mark.parametrize("frac", [0.25, 0.5, 0.75])
def test_the_same_order_in_every_epoch_hits_what_fits(frac: float) -> None:
    cache = Cache(int(frac * 2000))
    ratios = [cache.epoch(range(2000)) for _ in range(8)]
    assert min(ratios[1:]) >= 0.95 * frac


@pytest.mark.parametrize("in_step", [True, False])
def test_four_jobs_on_one_data_set(in_step: bool) -> None:
    rng = random.Random(5)
    cache = Cache(1000)
    orders = [shuffled(range(2000), rng) for _ in range(4)]
    if in_step:
        orders = [orders[0]] * 4
    hits: list[bool] = []
    for epoch in range(6):
        for position in range(2000):
            for job, order in enumerate(orders):
                page = order[position if in_step else (position + 500 * job) % 2000]
                hit = cache.read(page)
                if epoch and job == 0:
                    hits.append(hit)
        if not in_step:
            orders = [shuffled(range(2000), rng) for _ in range(4)]
    assert sum(hits) / len(hits) >= 0.95 * 0.5


def test_large_units_in_shuffled_order_stay() -> None:
    rng = random.Random(6)
    cache = Cache(10 * 64, per_segment=64)
    files = [range(64 * i, 64 * i + 64) for i in range(20)]
    ratios = [cache.epoch([page for file in rng.sample(files, 20) for page in file]) for _ in range(12)]
    assert min(ratios[1:]) >= 0.9 * 0.5


@pytest.mark.parametrize("policy", ["lru", "sieve", "s3fifo"])
def test_policies_for_serving_keep_what_is_asked_often(policy: Policy) -> None:
    rng = random.Random(7)
    cache = Cache(512, policy, per_segment=4)
    hot, cold = range(200), range(1000, 11_000)
    hits = [cache.read(rng.choice(hot) if rng.random() < 0.8 else rng.choice(cold)) for _ in range(12_000)][6000:]
    assert sum(hits) / len(hits) >= 0.6


def test_idle_and_empty_files_go_first_under_every_policy() -> None:
    clock = ReadClock([0] * NUM_CELLS)
    clock.advance(100)
    files = [
        FileState(1, 1, 7, 10, 5, 100, 0.0, 3, 0),
        FileState(2, 2, 7, 10, 0, 100, 0.0, 3, 0),
        FileState(3, 3, 7, 10, 5, 100, 99.0, 3, 0),
    ]
    for policy in ("epoch", "lru", "sieve", "s3fifo"):
        choice = choose(policy, files, clock, 20, 50.0, force=False)
        assert [file.number for file in choice.victims] == [2, 3]
    assert [f.number for f in choose("epoch", files, clock, 30, 50.0, force=False).victims] == [2, 3]
    assert [f.number for f in choose("epoch", files, clock, 30, 50.0, force=True).victims] == [2, 3, 1]


def test_copies_go_before_anything_that_is_used_and_make_room_for_no_copy() -> None:
    clock = ReadClock([0] * NUM_CELLS)
    clock.advance(100)
    files = [
        FileState(1, 1, 7, 10, 5, 90, 0.0, 3, 0),
        FileState(2, 2, 7, 10, 5, 100, 0.0, 3, 0, is_copy=True),
        FileState(3, 3, 7, 10, 5, 95, 0.0, 3, 0, is_copy=True),
    ]
    for policy in ("epoch", "lru", "sieve", "s3fifo"):
        assert [f.number for f in choose(policy, files, clock, 20, 50.0, force=False).victims] == [3, 2]
    assert [f.number for f in choose("epoch", files, clock, 30, 50.0, force=False).victims] == [3, 2]
    assert choose("epoch", files, clock, 20, 50.0, force=False, for_copy=True).victims == []


def test_what_is_mostly_dead_makes_place_for_what_comes() -> None:
    """Where all files are in use: the deadest first, and none of which most is live."""
    clock = ReadClock([0] * NUM_CELLS)
    clock.advance(100)
    files = [
        FileState(number, number, 7, 10, 5, 100, 0.0, 3, 0, dead_frac=dead_frac)
        for number, dead_frac in enumerate([0.0, 0.5, HOLLOW_FRAC - 0.01, 0.9])
    ]
    for need, rows in ((1, [3]), (15, [3, 1]), (100, [3, 1])):
        assert [file.row for file in choose("epoch", files, clock, need, 50.0, force=False).victims] == rows
