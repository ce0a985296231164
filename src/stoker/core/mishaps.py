"""Mistakes of stoker's own: told in a line, recorded with their traceback, and kept from the program.

What looks, chooses, compares, counts and reports is there for the program's sake; where it fails, the program goes on
as it would without it. What makes and delivers batches is not of this kind.
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
"""Told which part has failed, of what, and what follows from it, as half a sentence."""


def is_own(error: BaseException) -> bool:
    """Whether stoker's own code has failed, rather than the program's or torch's, as the innermost frame tells.

    What stoker raises on purpose is no mistake.
    """
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    module = innermost.tb_frame.f_globals.get("__name__", "") if innermost is not None else ""
    return module.startswith("stoker.") and not isinstance(error, StokerError)


def reraise_from_handler(error: Exception) -> None:
    """Raises an exception again that a signal handler of the program has raised in the midst of our code.

    A watchdog's time limit, say: it is the program's, wherever it meets us.
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
    """A mistake in a line, for people."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"stoker's {part} failed ({what:.200}): {consequence}; please report it with the records of this run"


def trace_of(error: Exception) -> str:
    """The traceback, for whoever mends it."""
    return "".join(traceback.format_exception(error))


class BestEffort:
    """Attempts what may fail without harm. A part that has failed is told, once, and not attempted again."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._failed: set[str] = set()

    def attempt(self, part: str, act: Callable[[], _T], otherwise: _T, *, then: str) -> _T:
        """What ``act`` returns, ``otherwise`` where it fails now or has failed before.

        Args:
            part: what is attempted, in words.
            act: attempts it.
            otherwise: stands for its result.
            then: what its failure means to a person, as half a sentence.
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
        """A part has failed."""
        if part not in self._failed:
            self._failed.add(part)
            self._tell(part, error, then)


class Unfailing:
    """Stands for an object that is only told things: once it has failed at one, it is not told that any more.

    Args:
        inner: the object.
        effort: attempts the calls.
        part: what the object does, in words.
        then: what its failure means, as half a sentence.
        together: a failure of one method ends all: they count what belongs together.
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
