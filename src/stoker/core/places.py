"""Copies of our functions located elsewhere in the source, so that warnings are shown and filtered as if from there.

``warnings.warn`` takes file, line and module from the stack: those of the caller of the function that warns. A function
of ours that acts for torch's loader, or makes a call on the program's behalf, would be named as that caller; so it acts
through a copy of a small function that python believes to be written at the other place.
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable
from typing import Any, TypeVar

_Template = TypeVar("_Template", bound=Callable[..., Any])

_MOST_SITES = 4096
_at_frames: dict[tuple[int, int], tuple[types.CodeType, Callable[..., Any]]] = {}


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls a function: a template for the functions below."""
    return function(*args, **kwargs)


def standing_in(template: _Template, function: Callable[..., Any], text: str) -> _Template:
    """A copy of ``template`` located in another function, at the first line that contains ``text``.

    Args:
        template: a function with one line of code, which refers to its arguments and to builtins only.
        function: one that is written in Python.
        text: if no line contains it (another version of a library), the copy is located at the function's first line.
    """
    code = function.__code__
    lines = linecache.getlines(code.co_filename)
    known = (number for _, _, number in code.co_lines() if number)
    inside = range(code.co_firstlineno, max(known, default=code.co_firstlineno) + 1)
    line = next((n for n in inside if n <= len(lines) and text in lines[n - 1]), code.co_firstlineno)
    return _copy(template, code, line, function.__globals__)


def calling_as(frame: types.FrameType) -> Callable[..., Any]:
    """A copy of :func:`call` located where a frame is now."""
    code = frame.f_code
    key = (id(code), frame.f_lasti)
    found = _at_frames.get(key)
    if found is not None and found[0] is code and found[1].__globals__ is frame.f_globals:
        return found[1]
    if len(_at_frames) >= _MOST_SITES:
        _at_frames.clear()
    made = _copy(call, code, frame.f_lineno or code.co_firstlineno, frame.f_globals)
    _at_frames[key] = code, made  # keeps the code alive, so that its id is not reused
    return made


def _copy(template: _Template, code: types.CodeType, line: int, names: dict[str, Any]) -> _Template:
    own = template.__code__
    body = max(number for _, _, number in own.co_lines() if number) - own.co_firstlineno
    placed = own.replace(
        co_filename=code.co_filename, co_firstlineno=line - body, co_name=code.co_name, co_qualname=code.co_qualname
    )
    made: Any = types.FunctionType(placed, names, code.co_name)
    return made
