"""Where a loader's time goes: the parts sum to the time that passed, whatever the program does, as it would measure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.state.window import Counters
from stoker.run.loaders.steps import LoaderTotals, StepClock


class Program:
    """A program on a virtual clock that asks loaders for batches, and measures the same from outside."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.clock = StepClock(lambda: self.now_s)
        self.feeds: dict[int, Any] = {}
        self.waited_s: dict[int, float] = {}
        self.delivered: dict[int, list[float]] = {}

    def feed(self, number: int) -> Any:
        if number not in self.feeds:
            self.feeds[number] = SimpleNamespace(number=number, counters=Counters())
            self.waited_s[number], self.delivered[number] = 0.0, []
        return self.feeds[number]

    def iter(self, number: int, seconds: float = 0.0) -> None:
        feed = self.feed(number)
        self.clock.begun(feed)
        self.now_s += seconds
        self.waited_s[number] += seconds if self.delivered[number] else 0.0
        self.clock.opened(feed)

    def next(self, number: int, seconds: float = 0.0, outcome: str = "batch") -> None:
        feed = self.feed(number)
        self.clock.asked(feed)
        self.now_s += seconds
        self.waited_s[number] += seconds if self.delivered[number] else 0.0
        if outcome != "batch":
            self.clock.failed(feed, ended=outcome == "end")
            return
        feed.counters.batches += 1
        self.clock.delivered(feed)
        self.delivered[number].append(self.now_s)

    def work(self, seconds: float) -> None:
        self.now_s += seconds

    def step(self) -> None:
        self.clock.stepped(None)  # as torch's hook does

    def leave(self, number: int) -> None:
        self.clock.left(self.feed(number))

    def span(self, number: int) -> dict[str, float]:
        """What went by from the first delivery of a loader to its last one."""
        clock = self.clock.of(self.feed(number))
        last, first = clock.last, clock.first
        assert first is not None
        assert last is not None
        return {name: getattr(last, name) - getattr(first, name) for name in LoaderTotals.__struct_fields__}


PARTS = ("input_wait_s", "h2d_s", "compute_s", "other_s")

SECONDS = st.floats(0.0, 10.0)
LOADER = st.integers(0, 2)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("iter"), LOADER, SECONDS),
        st.tuples(st.just("next"), LOADER, SECONDS, st.sampled_from(["batch", "batch", "batch", "error", "end"])),
        st.tuples(st.just("work"), SECONDS),
        st.tuples(st.just("step")),
        st.tuples(st.just("leave"), LOADER),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_parts_and_pauses_sum_to_the_time_between_deliveries(actions: list[tuple[Any, ...]]) -> None:
    program = Program()
    for name, *arguments in actions:
        getattr(program, name)(*arguments)
    for number, delivered in program.delivered.items():
        if not delivered:
            continue
        span = program.span(number)
        assert all(span[name] >= 0.0 for name in (*PARTS, "paused_s"))
        assert span["at_s"] == pytest.approx(delivered[-1] - delivered[0])
        assert sum(span[name] for name in PARTS) + span["paused_s"] == pytest.approx(span["at_s"])
        assert span["batches"] == len(delivered) - 1


@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=2, max_size=20))
def test_a_loop_is_divided_as_the_program_would_divide_it(steps: list[tuple[float, float, float]]) -> None:
    program = Program()
    program.iter(0, 3.0)
    for wait_s, compute_s, other_s in steps:
        program.next(0, wait_s)
        program.work(compute_s)
        program.step()
        program.work(other_s)
    span = program.span(0)
    assert span["input_wait_s"] == pytest.approx(sum(wait for wait, _, _ in steps[1:]))
    # An optimizer that stepped at the delivery itself has computed nothing.
    for name, column in (("compute_s", 1), ("other_s", 2)):
        if all(step[1] > 1e-6 for step in steps):
            assert span[name] == pytest.approx(sum(step[column] for step in steps[:-1]))


def test_loaders_taken_in_turn_each_have_the_whole_loop() -> None:
    program = Program()
    for number in (0, 1):
        program.iter(number)
    for _ in range(5):
        program.next(0, 0.2)
        program.next(1, 0.3)
        program.work(0.4)
        program.step()
        program.work(0.1)
    first, second = program.span(0), program.span(1)
    for span, wait_s, other_s in ((first, 0.2, 0.3 + 0.1), (second, 0.3, 0.2 + 0.1)):
        assert span["at_s"] == pytest.approx(4.0)
        assert span["input_wait_s"] == pytest.approx(4 * wait_s)
        assert span["compute_s"] == pytest.approx(4 * 0.4)
        assert span["other_s"] == pytest.approx(4 * other_s), "the other loader's wait is the rest of the loop"


def validate(program: Program) -> None:
    program.iter(1, 0.5)
    for _ in range(3):
        program.next(1, 1.0)
        program.work(1.0)
    program.next(1, 0.5, "end")


def test_validation_between_epochs_is_a_pause() -> None:
    program = Program()
    for _ in range(2):
        program.iter(0, 0.2)
        for _ in range(3):
            program.next(0, 0.1)
            program.work(0.4)
            program.step()
        program.next(0, 0.05, "end")
        validate(program)
        program.work(3.0)  # a checkpoint
    span = program.span(0)
    assert span["paused_s"] == pytest.approx(0.5 + 3 * 2.0 + 0.5 + 3.0)
    # The first batch of the second epoch was asked for with `iter`.
    assert span["input_wait_s"] == pytest.approx(5 * 0.1 + 0.05 + 0.2)
    assert span["compute_s"] == pytest.approx(5 * 0.4)
    assert span["other_s"] == pytest.approx(0.0)


def test_validation_inside_an_epoch_is_the_rest_of_the_loop() -> None:
    program = Program()
    program.iter(0)
    program.next(0, 0.1)
    program.work(0.4)
    program.step()
    validate(program)
    program.next(0, 0.1)
    span = program.span(0)
    assert span["paused_s"] == 0.0
    assert span["other_s"] == pytest.approx(7.0)
    assert (span["compute_s"], span["input_wait_s"]) == pytest.approx((0.4, 0.1))
    assert program.clock.of(program.feed(0)).optimizer_steps == 1
    assert program.clock.of(program.feed(1)).optimizer_steps == 0


def test_a_loop_that_is_left_early_ends_with_its_last_step() -> None:
    program = Program()
    for _ in range(2):
        program.iter(0)
        for _ in range(2):
            program.next(0, 0.1)
            program.work(0.4)
        program.leave(0)
        program.work(60.0)
    span = program.span(0)
    assert span["paused_s"] == pytest.approx(60.0)
    assert (span["compute_s"], span["input_wait_s"]) == pytest.approx((3 * 0.4, 3 * 0.1))


def test_a_loader_inside_of_another_ones_dataset_counts_once() -> None:
    program = Program()
    outer, inner = program.feed(0), program.feed(1)
    program.iter(0)
    program.next(0)
    program.work(1.0)
    program.clock.asked(outer)
    program.iter(1, 0.5)
    program.next(1, 0.5)
    program.work(0.25)
    program.next(1, 0.5)
    program.clock.delivered(outer)
    program.work(1.0)
    program.next(0)
    span = program.span(0)
    assert (span["input_wait_s"], span["compute_s"], span["other_s"]) == pytest.approx((1.75, 2.0, 0.0))
    assert program.span(1)["input_wait_s"] == pytest.approx(0.5)
    assert inner.counters.asked_s is None


def test_figures_of_a_delivery_do_not_move_while_the_next_batch_is_made() -> None:
    program = Program()
    program.iter(0)
    program.next(0, 1.0)
    program.work(2.0)
    clock, counters = program.clock.of(program.feed(0)), program.feed(0).counters
    before = clock.last
    program.clock.asked(program.feed(0))
    program.work(5.0)
    counters.batches += 1
    assert clock.last == before
    assert counters.waited_s(program.now_s) == pytest.approx(1.0 + 5.0), "and yet a policy sees the wait that goes on"
    program.clock.delivered(program.feed(0))
    assert clock.last is not None
    assert (clock.last.batches, clock.last.input_wait_s) == (2, pytest.approx(6.0))


class Marks:
    """A device that has caught up with the program so long before each request."""

    def __init__(self, idle_s: float) -> None:
        self.idle_s, self.steps = idle_s, 0
        self.before: tuple[float, Any] | None = None

    def stepped(self, optimizer: Any) -> None:
        self.steps += 1

    def asked(self, rest_s: float, answer: Any) -> None:
        if self.before is not None:
            self.before[1](self.before[0], self.idle_s)
        self.before = (rest_s, answer)


@pytest.mark.parametrize(("idle_s", "other_s"), [(0.0, 0.0), (1.0, 1.0), (3.0, 3.0), (9.0, 3.0)])
def test_of_the_rest_of_a_step_only_what_the_device_was_idle_is_other(idle_s: float, other_s: float) -> None:
    program = Program()
    marks = Marks(idle_s)
    program.clock = StepClock(lambda: program.now_s, marks)
    program.iter(0)
    for _ in range(11):
        program.next(0)
        program.work(2.0)
        program.step()
        program.work(3.0)  # it reads its loss, and waits for the device
    program.next(0)
    program.next(0)
    clock = program.clock.of(program.feed(0))
    assert marks.steps == 11
    assert clock.compute_s + clock.other_s == pytest.approx(11 * 5.0)
    assert clock.other_s == pytest.approx(11 * other_s)
