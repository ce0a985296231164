"""Mistakes of stoker's own are told once, with what follows from them, and go no further."""

from __future__ import annotations

import signal
import types
from collections.abc import Callable

import pytest

from stoker.core import units
from stoker.core.errors import WorkerStartError
from stoker.core.mishaps import BestEffort, Unfailing, is_own, line_of, trace_of


def caught(act: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as found:  # noqa: PT011 - whatever it is
        act()
    return found.value


def of_stoker(text: str) -> Callable[[], object]:
    """A function that stands in a module of stoker's."""
    names = dict(vars(units))
    exec(f"def act():\n    {text}", names)
    found = names["act"]
    assert isinstance(found, types.FunctionType)
    return found


class TestWhose:
    def test_what_our_code_raises_by_mistake_is_our_own(self) -> None:
        assert is_own(caught(of_stoker("raise ValueError('x')")))
        assert is_own(caught(of_stoker("return [][0]")))

    def test_what_the_program_raises_is_not_even_where_we_called_it(self) -> None:
        def dataset() -> None:
            raise ValueError("x")

        effort = BestEffort(lambda part, error, then: None)
        assert not is_own(caught(dataset))
        assert not is_own(caught(lambda: effort.attempt("a", lambda: 1 / 0, 0, then="b") or dataset()))

    def test_what_we_raise_on_purpose_is_not(self) -> None:
        def start() -> None:
            raise WorkerStartError("no process")

        assert not is_own(caught(start))


def test_a_part_that_failed_is_told_once_and_not_attempted_again() -> None:
    told: list[tuple[str, str, str]] = []
    effort = BestEffort(lambda part, error, then: told.append((part, str(error), then)))
    calls: list[int] = []

    def act() -> int:
        calls.append(1)
        raise ValueError("broken")

    for _ in range(3):
        assert effort.attempt("watch", act, 7, then="nobody watches") == 7
    assert effort.attempt("another part", lambda: 8, 7, then="") == 8
    assert told == [("watch", "broken", "nobody watches")]
    assert len(calls) == 1


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def good(self, text: str) -> None:
        self.heard.append(text)

    def bad(self, text: str) -> None:
        raise ValueError(text)


@pytest.mark.parametrize("together", [False, True])
def test_a_listener_that_fails_at_one_thing_is_told_the_others_unless_they_belong_together(together: bool) -> None:
    told: list[str] = []
    listener = Listener()
    unfailing = Unfailing(
        listener, BestEffort(lambda part, error, then: told.append(part)), "record", then="", together=together
    )
    unfailing.good("1")
    unfailing.bad("2")
    unfailing.bad("3")
    unfailing.good("4")
    assert listener.heard == (["1"] if together else ["1", "4"])
    assert told == ["record"]


def test_the_line_is_one_line_and_the_traceback_names_the_place() -> None:
    error = caught(of_stoker("raise ValueError('a\\n   b')"))
    line = line_of("watch over memory", error, "it is not bounded")
    assert line == (
        "stoker's watch over memory failed (ValueError: a b): it is not bounded; please report it with the records of "
        "this run"
    )
    assert "in act" in trace_of(error)


class Late(Exception):
    """What a watchdog of the program raises."""


def test_what_a_signal_handler_of_the_program_raises_is_the_programs() -> None:
    def handler(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        effort = BestEffort(lambda part, error, then: None)
        with pytest.raises(Late):
            effort.attempt("a", lambda: signal.raise_signal(signal.SIGUSR1), None, then="b")
        assert effort.attempt("a", lambda: 7, 0, then="b") == 7
    finally:
        signal.signal(signal.SIGUSR1, before)
