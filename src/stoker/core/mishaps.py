"""Bugs in stoker: reported in a line, recorded with their traceback, and kept from the program.

The program does not need the code that observes, chooses, compares, counts and reports; where it fails, the program
continues without it. Code that makes and delivers batches is not of this kind.
"""

from __future__ import annotations

import functools
import signal
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from stoker.core.errors import StokerError

_T = TypeVar("_T")

Tell = Callable[[str, Exception, str], None]
"""Called with the part that failed, its error, and the consequence as half a sentence."""


def is_own(error: BaseException) -> bool:
    """Whether the innermost frame of an error is in stoker's code rather than the program's or torch's.

    False for errors that stoker raises on purpose.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "") if innermost is not None else ""
    return module.startswith("stoker.") and not isinstance(error, StokerError)


def reraise_from_handler(error: Exception) -> None:
    """Re-raises an exception that a signal handler of the program raised while our code was running.

    A watchdog's timeout, for example, belongs to the program wherever it interrupts us.
    """
    handlers = {getattr(_function_of(signal.getsignal(number)), "__code__", None) for number in signal.valid_signals()}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code in handlers:
            raise error


def _function_of(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return getattr(handler, "__func__", handler)


def line_of(part: str, error: Exception, consequence: str) -> str:
    """One line about a failure, for people."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"stoker's {part} failed ({what:.200}): {consequence}; please report it with the records of this run"


def trace_of(error: Exception) -> str:
    """The traceback, for the records."""
    return "".join(traceback.format_exception(error))


class BestEffort:
    """Attempts what may fail without harm. A part that fails is reported once and not attempted again."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._failed: set[str] = set()

    def attempt(self, part: str, act: Callable[[], _T], otherwise: _T, *, then: str) -> _T:
        """What ``act`` returns, or ``otherwise`` if it fails now or has failed before.

        Args:
            part: what is attempted, in words.
            act: attempts it.
            otherwise: the result of a failure.
            then: what a failure means for people, as half a sentence.
        """
        if part in self._failed:
            return otherwise
        try:
            return act()
        except Exception as error:
            reraise_from_handler(error)
            self.failed(part, error, then)
            return otherwise

    def failed(self, part: str, error: Exception, then: str) -> None:
        """Reports that a part has failed, once."""
        if part not in self._failed:
            self._failed.add(part)
            self._tell(part, error, then)


class Unfailing:
    """A proxy for an object whose methods return nothing: a method that has failed once is not called again.

    Args:
        inner: the object.
        effort: reports the failure.
        part: what the object does, in words.
        then: what its failure means, as half a sentence.
        together: whether a failure of one method ends all, since their counts belong together.
    """

    def __init__(self, inner: object, effort: BestEffort, part: str, then: str, *, together: bool = False) -> None:
        self._inner = inner
        self._effort = effort
        self._part = part
        self._then = then
        self._together = together
        self._ended = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        act: Callable[..., Any] = getattr(self._inner, name)

        def tell(*args: object, **kwargs: object) -> None:
            if self._ended:
                return
            try:
                act(*args, **kwargs)
            except Exception as error:
                reraise_from_handler(error)
                self._give_up(name, error)

        vars(self)[name] = tell
        return tell

    def _give_up(self, name: str, error: Exception) -> None:
        self._ended = self._together
        vars(self)[name] = _nothing
        self._effort.failed(self._part, error, self._then)


def _nothing(*_: object, **__: object) -> None:
    pass
