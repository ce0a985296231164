# pyright: reportPrivateUsage=false
"""From marks to steps, from steps to a pace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from stoker.feed.state.window import Counters
from stoker.feed.torch_private import BaseIterator
from stoker.perf.diagnosis.marks import Mark, MarkKind, pace_of, steps_of
from stoker.run.profiling.step_marks import StepRecorder

A, D, B, E = MarkKind.ASKED, MarkKind.DELIVERED, MarkKind.STEPPING, MarkKind.STEPPED


def marks(*words: tuple[MarkKind, float], thread: int = 1, owner: int = 7) -> list[Mark]:
    return [Mark(kind, t_s, thread, owner if kind in (B, E) else 0, t_s / 2) for kind, t_s in words]


def test_a_step_ends_with_the_optimizer() -> None:
    found = steps_of(marks((A, 0), (D, 1), (B, 3), (E, 4), (A, 5), (D, 7), (B, 9), (E, 10)), by_optimizer=True)
    assert len(found) == 1
    step = found[0]
    assert (step.period_s, step.wait_s, step.optimizer_s, step.after_s, step.batches) == (6, 2, 1, 1, 1)
    assert step.wait_cpu_s == 1


def test_accumulated_batches_are_one_step() -> None:
    words = [(B, 0), (E, 1), (A, 2), (D, 3), (A, 5), (D, 6), (B, 8), (E, 9)]
    step = steps_of(marks(*words), by_optimizer=True)[0]
    assert (step.batches, step.wait_s, step.after_s) == (2, 2, 1)


def test_the_second_optimizer_of_a_step_is_part_of_it() -> None:
    first = marks((B, 0), (E, 1), (B, 10), (E, 11))
    second = marks((B, 2), (E, 4), (B, 12), (E, 14), owner=8)
    found = steps_of(sorted([*first, *second], key=lambda mark: mark.t_s), by_optimizer=True)
    assert [step.period_s for step in found] == [10]
    assert found[0].optimizer_s == 3


def test_what_an_optimizer_has_computed_is_not_its_own() -> None:
    """As Lightning calls it: forward and backward pass are in a closure, after which the optimizer goes on."""
    step = steps_of(marks((B, 0), (E, 1), (A, 2), (D, 3), (B, 4), (B, 9), (E, 10)), by_optimizer=True)[0]
    assert step.optimizer_s == 1


def test_without_an_optimizer_batches_count() -> None:
    found = steps_of(marks((A, 0), (D, 1), (A, 3), (D, 5), (A, 6), (D, 7)), by_optimizer=False)
    assert [(step.period_s, step.wait_s) for step in found] == [(3, 1), (3, 2)]


def test_other_threads_are_their_own_business() -> None:
    own = marks((A, 0), (D, 1), (B, 2), (E, 3), (A, 4), (D, 5), (B, 6), (E, 7))
    other = marks((A, 3.5), (D, 6.5), thread=2)
    assert steps_of(sorted([*own, *other], key=lambda m: m.t_s), by_optimizer=True)[0].wait_s == 1


def test_a_loader_inside_of_a_dataset_is_part_of_the_wait() -> None:
    found = steps_of(marks((B, 0), (E, 1), (A, 2), (A, 3), (D, 4), (D, 6), (B, 7), (E, 8)), by_optimizer=True)
    assert (found[0].wait_s, found[0].batches) == (4, 1)


def test_nothing_gives_nothing() -> None:
    assert steps_of([], by_optimizer=True) == []
    assert steps_of(marks((B, 0), (E, 1)), by_optimizer=True) == []


@given(st.lists(st.tuples(*[st.floats(0.001, 1)] * 4), min_size=2, max_size=40))
def test_the_pieces_fit_into_the_step(lengths: list[tuple[float, ...]]) -> None:
    now, found = 0.0, []
    for step in lengths:
        for kind, length in zip((A, D, B, E), step, strict=True):
            found.append((kind, now := now + length))
    steps = steps_of(marks(*found), by_optimizer=True)
    assert len(steps) == len(lengths) - 1
    for each in steps:
        assert each.wait_s + each.optimizer_s + each.after_s <= each.period_s + 1e-9


class TestRecorder:
    @given(st.lists(st.tuples(*[st.floats(0.001, 1)] * 4), min_size=2, max_size=20))
    def test_a_run_and_a_profile_divide_a_loop_alike(self, lengths: list[tuple[float, ...]]) -> None:
        now_s, optimizer = 100.0, torch.optim.SGD([torch.zeros(1)], lr=0.1)
        feed: Any = SimpleNamespace(number=0, counters=Counters())
        recorder = StepRecorder(lambda *_: None, lambda: now_s)
        recorder.install()
        try:
            recorder.begun(feed)
            recorder.opened(feed)
            for wait_s, compute_s, optimizer_s, after_s in lengths:
                recorder.asked(feed)
                now_s += wait_s
                recorder.delivered(feed)
                now_s += compute_s
                recorder._stepping(optimizer, (optimizer,), {})
                now_s += optimizer_s
                recorder.stepped(optimizer)
                now_s += after_s
        finally:
            recorder.remove()
        first, last = recorder.of(feed).first, recorder.of(feed).last
        assert first is not None
        assert last is not None
        steps = steps_of(recorder.marks, by_optimizer=True)
        assert sum(step.wait_s for step in steps) == pytest.approx(last.input_wait_s - first.input_wait_s)
        assert sum(step.after_s for step in steps) == pytest.approx(last.other_s - first.other_s)
        # A run's steps end with a request for a batch, a profile's with the optimizer.
        rests = [step.period_s - step.wait_s - step.after_s for step in steps]
        assert rests == pytest.approx([compute_s + optimizer_s for _, compute_s, optimizer_s, _ in lengths[1:]])
        own_s = sum(compute_s + optimizer_s for _, compute_s, optimizer_s, _ in lengths[:-1])
        assert last.compute_s - first.compute_s == pytest.approx(own_s)

    def test_torchs_own_loaders_are_seen_until_it_ends_and_the_clock_goes_on(self) -> None:
        stock, ends = BaseIterator.__next__, list[int]()
        recorder = StepRecorder(lambda end, by_optimizer: ends.append(end))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        recorder.install()
        try:
            batches = iter(DataLoader(range(6), batch_size=3))  # type: ignore[arg-type]
            next(batches)
            optimizer.step()
            recorder.end()
            next(batches)
            optimizer.step()
            kinds = [mark.kind for mark in recorder.marks]
            assert kinds == [A, D, B, E]
            assert ends == [0]
            loader = recorder.main_loader()
            assert loader is not None
            assert loader.batch_size == 3
            assert BaseIterator.__next__ is stock
            feed: Any = SimpleNamespace(number=0, counters=Counters())
            recorder.asked(feed)
            recorder.delivered(feed)
            optimizer.step()
            assert recorder.of(feed).optimizer_steps == 1, "a loader that stoker serves is still timed"
            assert [mark.kind for mark in recorder.marks] == [A, D, B, E]
        finally:
            recorder.remove()

    def test_a_mistake_while_marks_are_set_does_not_reach_the_program(self) -> None:
        def fails(*_: object) -> None:
            raise OSError("planted")

        recorder = StepRecorder(fails)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        recorder.install()
        try:
            optimizer.step()
            optimizer.step()
        finally:
            recorder.remove()
        assert [mark.kind for mark in recorder.marks] == [B, E], "and no more is marked"


class TestPace:
    def test_a_single_disturbance_does_not_move_it(self) -> None:
        assert pace_of([1.0] * 44 + [60.0]).seconds == pytest.approx(1.0)

    def test_waits_that_come_back_count_in_full(self) -> None:
        pace = pace_of([1.0, 1.0, 1.0, 5.0] * 10)
        assert pace.seconds == pytest.approx(2.0)

    def test_five_blocks_hold_the_median_in_94_of_100_cases(self) -> None:
        assert pace_of([1.0] * 10).share == pytest.approx(0.9375)

    @given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=100))
    def test_it_lies_in_its_interval(self, periods: list[float]) -> None:
        pace = pace_of(periods)
        assert min(periods) * 0.999999 <= pace.low <= pace.seconds <= pace.high <= max(periods) * 1.000001
