"""Breaker, hedging and budget on a clock that the test moves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.cluster.client.breaker import LAST_PROBE_S, Breaker
from stoker.cache.cluster.client.budget import StoreBudget, TokenBucket
from stoker.cache.cluster.client.hedging import HEDGED_FRAC, SHORTEST_S, Hedging, size_class
from stoker.cache.cluster.membership.hot_chunks import Announced, Heat
from stoker.cache.names import ObjectName


def test_one_failure_keeps_reads_away_and_one_probe_goes_at_a_time() -> None:
    breaker = Breaker(random.Random(1))
    assert breaker.allows
    assert breaker.next_probe_s(100.0) is None
    breaker.fail(100.0)
    assert not breaker.allows
    assert not breaker.take_probe(100.0)
    due_s = breaker.next_probe_s(100.0)
    assert due_s is not None
    assert breaker.take_probe(100.0 + due_s)
    assert not breaker.take_probe(100.0 + due_s)  # one probe at a time
    assert not breaker.allows
    assert breaker.take_probe(100.0 + due_s + LAST_PROBE_S)  # that one came to nothing


def test_probes_become_rarer() -> None:
    breaker = Breaker(random.Random(2))
    now, waits = 0.0, list[float]()
    for _ in range(20):
        breaker.fail(now)
        wait_s = breaker.next_probe_s(now)
        assert wait_s is not None
        waits.append(wait_s)
        now += wait_s
    assert waits[0] <= 0.5
    assert LAST_PROBE_S / 2 <= waits[-1] <= LAST_PROBE_S


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5)), max_size=100), st.floats(0.1, 50), st.floats(1, 20))
def test_a_bucket_never_gives_more_than_came_in(steps: list[tuple[float, int]], rate: float, burst: float) -> None:
    bucket = TokenBucket(rate, burst, burst)
    now, taken = 0.0, 0
    for step_s, count in steps:
        now += step_s
        if bucket.take(count, now):
            taken += count
        assert taken <= burst + rate * now + 1e-6


def test_a_bucket_says_how_long() -> None:
    bucket = TokenBucket(rate_per_s=10.0, burst=5.0, tokens=0.0)
    assert bucket.wait_s(2, 0.0) == pytest.approx(0.2)
    assert bucket.wait_s(2, 0.2) == pytest.approx(0.0)
    assert TokenBucket(0.0, 5.0).wait_s(1, 0.0) == float("inf")
    assert not bucket.take(5, -100.0)  # the clock was set back


def test_reads_wait_for_the_budget_but_never_longer_than_the_deadline() -> None:
    budget = StoreBudget(cluster_per_s=100.0, isolated_per_s=10.0, deadline_s=0.5, random=random.Random(3))
    waits = [budget.spend(1, 0.0) for _ in range(40)]
    assert waits[:10] == [0.0] * 10
    assert all(0.0 < wait_s <= 0.5 for wait_s in waits[10:])
    assert max(waits) == 0.5


def test_the_share_follows_the_number_of_clients() -> None:
    budget = StoreBudget(cluster_per_s=100.0, isolated_per_s=1.0, random=random.Random(4))
    budget.share(4)
    now, sent = 0.0, 0
    while now < 10.0:  # a reader that waits as it is told
        now += budget.spend(1, now) or 0.001
        sent += 1
    assert 0.5 * 25 * 10 <= sent <= 25 * 11 + 1
    with pytest.raises(ValueError, match="above 0"):
        StoreBudget(cluster_per_s=0.0)


def test_a_hedge_waits_for_what_is_usual_of_this_owner_and_size() -> None:
    hedging = Hedging()
    assert hedging.of("a", 4096).delay_s is None
    for number in range(100):
        hedging.of("a", 4096).add(0.0001)
        hedging.of("b", 4096).add(0.02 if number % 10 else 0.2)
    assert hedging.of("a", 4096).delay_s == SHORTEST_S
    assert hedging.of("b", 4096).delay_s == pytest.approx(0.2)
    assert hedging.of("a", 1 << 20).delay_s is None
    hedging.forget("a")
    assert hedging.of("a", 4096).delay_s is None


@given(st.lists(st.booleans(), max_size=2000))
def test_hedges_stay_a_small_part_of_requests(slow: list[bool]) -> None:
    hedging = Hedging()
    for is_slow in slow:
        hedging.count()
        if is_slow:
            hedging.take()
        assert hedging.hedges <= HEDGED_FRAC * hedging.requests + 1e-9


def test_size_classes() -> None:
    assert [size_class(size) for size in (0, 1, 4096, 4097, 16384, 16385, 1 << 20)] == [0, 0, 0, 1, 1, 2, 4]


def test_a_chunk_is_hot_when_it_is_asked_for_often_and_no_longer_than_that() -> None:
    heat = Heat(hot_per_s=10.0)
    hot, cold = (ObjectName("s3||", "hot"), 0), (ObjectName("s3||", "cold"), 0)
    copies = [heat.ask(hot, second + part / 50) for second in range(3) for part in range(50)]
    assert copies[:50] == [1] * 50
    assert copies[-1] == 4  # five times as often as is hot: 1 + 3
    assert heat.ask(cold, 3.0) == 1
    heat.ask(hot, 4.1)
    assert heat.ask(hot, 5.2) == 1


def test_a_client_chooses_the_less_busy_of_two_copies_until_the_announcement_ends() -> None:
    announced = Announced(random.Random(5))
    chunk = (ObjectName("s3||", "hot"), 0)
    assert announced.choose(chunk, 5, 0.0, lambda _: 0) == 0
    announced.tell(chunk, 3, 0.0)
    chosen = {announced.choose(chunk, 5, 1.0, lambda number: 10 if number == 1 else 0) for _ in range(100)}
    assert chosen == {0, 2}
    assert announced.choose(chunk, 1, 1.0, lambda _: 0) == 0
    assert announced.choose(chunk, 5, 100.0, lambda _: 0) == 0
    assert not announced
