"""Functions that a user names for a command: what they raise is shown as theirs, and what they print is no answer."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from stoker.core.code.definitions import load_function, parted
from stoker.core.errors import ConfigError, StokerError

_STOKER = str(Path(__file__).parents[2]) + os.sep
_END = object()


class UserFunction:
    """A function without arguments, imported.

    Args:
        target: ``module:function`` or ``file.py:function``.

    Raises:
        ConfigError: there is no such function, or its module raises; its traceback is printed.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        with _theirs(target):
            self._function = load_function(*parted(target))

    def __call__(self) -> Any:
        """What it returns.

        Raises:
            ConfigError: it raises; its traceback is printed.
        """
        with _theirs(self.target):
            return self._function()

    def batches(self) -> Iterator[Any]:
        """What it returns, one after another.

        Raises:
            ConfigError: it returns nothing to go through, or raises, also in the middle.
        """
        made = self()
        if not (hasattr(made, "__iter__") or hasattr(made, "__getitem__")):
            raise ConfigError(
                f"`{self.target}` must return batches, as a DataLoader or a list does, got {type(made).__name__}"
            )
        with _theirs(self.target):
            iterator = iter(made)
        while True:
            with _theirs(self.target):
                batch = next(iterator, _END)
            if batch is _END:
                return
            yield batch


@contextlib.contextmanager
def printing_aside(aside: bool) -> Generator[None]:
    """Inside, what python prints goes to standard error, if asked: standard output is a program's, for the answer."""
    with contextlib.redirect_stdout(sys.stderr) if aside else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _theirs(target: str) -> Generator[None]:
    try:
        yield
    except StokerError:
        raise
    except Exception as error:
        _print_raised(error)
        said = traceback.format_exception_only(error)[-1].strip()
        raise ConfigError(f"`{target}` must not raise, and its traceback is above: {said}") from error


def _print_raised(error: BaseException) -> None:
    """The traceback as python would print it, without who called."""
    told = traceback.TracebackException.from_exception(error)
    each: traceback.TracebackException | None = told
    while each is not None:
        each.stack = traceback.StackSummary.from_list(
            frame for frame in each.stack if not frame.filename.startswith((_STOKER, "<frozen importlib"))
        )
        each = each.__cause__ or each.__context__
    sys.stderr.write("".join(told.format()))
