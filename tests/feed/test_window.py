"""Windows of a queue: shares stay shares, idle time is counted once, whatever the order of events."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stoker.feed.state.ledger import Idleness
from stoker.feed.state.window import Counters, Window


class AnyOrder(RuleBasedStateMachine):
    """Workers come, idle, work and go while windows close."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0
        self.counters = Counters()
        self.idleness = Idleness()
        self.window = Window(self.counters, self.now_s, self.idleness)
        self.idle_since: dict[int, float] = {}
        self.idle_s = 0.0
        self.paused = False
        self.shown_s = 0.0
        self.shown_steps = 0

    @rule(seconds=st.floats(0, 5))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        if not self.paused:
            self.idle_s += seconds * len(self.idle_since)
            self.shown_s += seconds

    @rule()
    def pause(self) -> None:
        self.window.pause(self.now_s)
        self.paused = True

    @rule()
    def resume(self) -> None:
        self.window.resume(self.now_s)
        self.paused = False

    @rule(worker=st.integers(0, 3))
    def idle(self, worker: int) -> None:
        if worker not in self.idle_since:
            self.idle_since[worker] = self.now_s
            self.idleness.idle(worker, self.now_s)

    @rule(worker=st.integers(0, 3))
    def busy(self, worker: int) -> None:
        self.idle_since.pop(worker, None)
        self.idleness.busy(worker, self.now_s)

    @rule(batches=st.integers(0, 5), starved=st.integers(0, 5), wait_s=st.floats(0, 9), made=st.floats(0, 1))
    def deliver(self, batches: int, starved: int, wait_s: float, made: float) -> None:
        self.counters.batches += batches
        self.shown_steps += 0 if self.paused else batches
        self.counters.starved_steps += min(batches, starved)
        self.counters.input_wait_s += wait_s
        self.counters.starved_s += made * wait_s

    @precondition(lambda self: not self.paused)
    @rule()
    def close(self) -> None:
        assert self.window.span_s(self.now_s) == pytest.approx(self.shown_s)
        seen = self.window.close(self.now_s, workers=4, depth=2, batch_bytes=10, waiting=False)
        for share in (seen.starved_frac, seen.input_wait_frac, seen.handover_frac, seen.blocked_frac):
            assert 0.0 <= share <= 1.0
        assert seen.handover_frac <= seen.input_wait_frac
        assert self.window.begun_s == self.now_s == seen.now_s
        assert seen.steps == self.shown_steps
        self.shown_s = self.shown_steps = 0

    @invariant()
    def no_idle_time_twice(self) -> None:
        assert self.counters.worker_idle_s <= self.idle_s + 1e-6

    @precondition(lambda self: self.paused)
    @invariant()
    def nothing_is_closed_in_a_pause(self) -> None:
        assert self.window.span_s(self.now_s) == 0.0

    def teardown(self) -> None:
        self.resume()
        self.window.close(self.now_s, workers=4, depth=2, batch_bytes=0, waiting=True)
        assert self.counters.worker_idle_s == pytest.approx(self.idle_s)


TestAnyOrder = AnyOrder.TestCase


def test_figures_are_those_of_the_window_alone() -> None:
    counters = Counters(batches=10, items=20, worker_busy_s=5.0, step_s=3.0)
    window = Window(counters, 1.0)
    counters.batches += 4
    counters.starved_steps += 1
    counters.items += 2
    counters.worker_busy_s += 0.5
    counters.worker_cpu_s += 0.25
    counters.step_s += 0.4
    counters.input_wait_s += 0.6
    window._idleness.idle(7, 1.5)
    seen = window.close(3.0, workers=2, depth=3, batch_bytes=99, waiting=False)
    assert (seen.steps, seen.items, seen.workers, seen.depth, seen.batch_bytes) == (4, 2, 2, 3, 99)
    assert seen.starved_frac == 0.25
    assert seen.input_wait_frac == pytest.approx(0.3)
    assert seen.blocked_frac == pytest.approx(1.5 / (2 * 2.0))
    assert (seen.item_wall_s, seen.item_cpu_s) == (0.25, 0.125)
    assert seen.step_s == pytest.approx(0.1)
    again = window.close(4.0, workers=2, depth=3, batch_bytes=99, waiting=True)
    assert (again.steps, again.items, again.item_wall_s, again.step_s) == (0, 0, 0.0, 0.0)
    assert again.blocked_frac == pytest.approx(0.5), "worker 7 has been idle since"
    assert again.waiting


def test_a_wait_that_goes_on_counts_up_to_the_end_of_the_window() -> None:
    counters = Counters(asked_s=10.0)
    window = Window(counters, 12.0)
    counters.starved_s += 1.0
    seen = window.close(16.0, workers=2, depth=2, batch_bytes=0, waiting=True)
    assert seen.input_wait_frac == pytest.approx(1.0)
    assert seen.handover_frac == pytest.approx(0.75), "three of the four seconds the batch was there"
    counters.input_wait_s, counters.asked_s = counters.waited_s(18.0), None
    seen = window.close(20.0, workers=2, depth=2, batch_bytes=0, waiting=False)
    assert (seen.input_wait_frac, seen.handover_frac) == pytest.approx((0.5, 0.5))


def test_a_copy_does_not_follow() -> None:
    counters = Counters(batches=1)
    copy = counters.copy()
    counters.batches += 1
    assert copy.batches == 1
