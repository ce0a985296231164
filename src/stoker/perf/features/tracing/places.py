"""Where in the program something happened, and what its user says about sizes that depend on values."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Generator, Mapping
from types import FrameType

import torch

from stoker.core.errors import TracingError

_STOKER = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
OWN = tuple(os.path.join(_STOKER, name) + os.sep for name in ("core", "feed", "graph", "perf", "run", "train"))
"""Packages that act inside a program. The program of `stoker demo` is none of them."""
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
"""Folder of torch."""
_PYTHON = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))


def place() -> str:
    """File and line of the program that led here: the innermost that is neither torch's nor ours."""
    found = _frame()
    return f"{os.path.basename(found[0])}:{found[1]}" if found else ""


def program_line() -> str:
    """File and line of the program that led here: the innermost in its files, else in a package that it consists of."""
    found: FrameType | None = None
    for frame in frames():
        if not _is_packaged(frame.f_code.co_filename):
            found = frame
            break
        found = found or frame
    return f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno}" if found is not None else ""


@functools.cache
def _is_packaged(path: str) -> bool:
    return path.startswith(_PACKAGES)


def frames() -> Generator[FrameType]:
    """The program's frames, the innermost first: those that are neither torch's nor python's nor ours."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if not _is_passed_over(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


@functools.cache
def _is_passed_over(path: str) -> bool:
    is_pythons = path.startswith(_PYTHON) and not path.startswith(_PACKAGES)
    return is_pythons or path.startswith((*OWN, TORCH, "<"))


def _frame() -> tuple[str, int] | None:
    found = next(frames(), None)
    return (found.f_code.co_filename, found.f_lineno) if found is not None else None


def _methods() -> Generator[tuple[str, torch.nn.Module]]:
    """Methods of modules that are running, the innermost first, each with its module."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        names = frame.f_code.co_varnames
        given = frame.f_locals
        owner = given.get(names[0]) if names else None
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            # There a frame keeps the dictionary that it gave out, and with it tensors that the program drops later.
            given.clear()
        if isinstance(owner, torch.nn.Module):
            yield frame.f_code.co_name, owner
        frame = frame.f_back


def in_constructor() -> bool:
    """Whether a module is being constructed."""
    return any(name == "__init__" for name, _ in _methods())


def outermost(module: torch.nn.Module) -> torch.nn.Module:
    """The outermost module that runs a method and holds this one: a trainer may never call it, only its parts."""
    holders = [owner for _, owner in _methods() if any(part is module for part in owner.modules())]
    return holders[-1] if holders else module


class Hints:
    """Values that cannot be computed, by hints or assumptions, with a record of the assumptions.

    Args:
        given: number of elements, or fraction of them below 1, by line of the program or by operation.
    """

    def __init__(self, given: Mapping[str, float]) -> None:
        self.given = given
        self.assumed: dict[str, None] = {}
        """Sentences, each once, in their order."""
        self.used: set[str] = set()
        self._numbers: dict[str, None] = {}

    def size(self, name: str, most: int, harmless: bool = False) -> int:
        """How many elements a mask, `nonzero` or the like selects out of ``most``.

        Args:
            name: the operation.
            most: number of elements.
            harmless: only the cost depends on it and no size; then all elements are assumed.

        Raises:
            TracingError: there is no hint.
        """
        value = self._find(name)
        if value is None:
            if harmless:
                return most
            raise self.error(name)
        return min(most, int(value) if value > 1 or value == 0 else round(value * most) if value < 1 else most)

    def scalar(self, dtype: torch.dtype) -> float | int | bool:
        """A value that the program asks for by `item()`, `if` or `int()`."""
        where = place()
        value = self._find("item")
        if dtype.is_floating_point:
            if value is None:
                self._numbers[where] = None
            return 1.0 if value is None else value
        if value is not None:
            return bool(value) if dtype is torch.bool else int(value)
        if dtype is torch.bool:
            answer = _in_assertion()
            self.assumed[f"a computed condition at {where} was taken as {answer}"] = None
            return answer
        self.assumed[f"a computed whole number at {where} was taken as 1; --hint {where}=N says otherwise"] = None
        return 1

    def sentences(self) -> tuple[str, ...]:
        """All assumptions."""
        if not self._numbers:
            return tuple(self.assumed)
        return (
            *self.assumed,
            f"computed numbers, such as losses to print, were taken as 1: {', '.join(self._numbers)}",
        )

    def note(self, sentence: str) -> None:
        """Records an assumption."""
        self.assumed[sentence] = None

    def error(self, name: str) -> TracingError:
        """The error for a missing hint."""
        where = place() or "an unknown line"
        message = (
            f"`{name}` at {where} gives a size that depends on computed values, which are not known here; "
            f"say how many elements, or which fraction: --hint {where}=0.15, in Python hints={{{where!r}: 0.15}}"
        )
        return TracingError(message, operation=name, where=where)

    def _find(self, name: str) -> float | None:
        for key in (place(), name):
            if key in self.given:
                self.used.add(key)
                return self.given[key]
        return None


def _in_assertion() -> bool:
    """Whether the line that asks is an assertion, which a sound program passes."""
    found = _frame()
    return found is not None and linecache.getline(*found).lstrip().startswith("assert")
