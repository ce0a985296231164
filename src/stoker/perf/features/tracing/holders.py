"""Which variables of the program hold tensors, and on which lines they are assigned and read."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import sys
from collections.abc import Generator, Iterable
from types import FrameType
from typing import Any, cast

from torch import Tensor

_MOST = 64
"""Entries of a container that are looked at: outputs have few, and what has more is no output."""


def tensors_in(frames: Iterable[FrameType]) -> Generator[tuple[Tensor, str, FrameType]]:
    """Tensors of local variables, directly or in a container, each with the variable's name and its frame."""
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            for tensor in _tensors_of(value):
                yield tensor, name, frame
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            # There a frame keeps the dictionary that it gave out, and with it tensors that the program drops later.
            frame.f_locals.clear()


def _tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        found = list(cast("dict[Any, Any]", value).values())
    elif isinstance(value, (list, tuple)):
        found = list(cast("list[Any] | tuple[Any, ...]", value))
    else:
        return []
    return [each for each in found if isinstance(each, Tensor)] if len(found) <= _MOST else []


def lines_of(frame: FrameType, name: str) -> tuple[str, str]:
    """Where a variable was assigned last, and where it is read last, before the line that a frame is at.

    Returns:
        Two places as ``train.py:31``, or empty texts where there is none.
    """
    path, line = frame.f_code.co_filename, frame.f_lineno
    assigned, read = _places(path, frame.f_code.co_firstlineno, name, line)
    shown = os.path.basename(path)
    return f"{shown}:{assigned}" if assigned else "", f"{shown}:{read}" if read else ""


@functools.lru_cache(maxsize=512)
def _places(path: str, first: int, name: str, line: int) -> tuple[int, int]:
    return places_in("".join(linecache.getlines(path)), first, name, line)


def places_in(source: str, first: int, name: str, line: int) -> tuple[int, int]:
    """Lines of the last assignment and the last reading of a name, up to a line of a function.

    Args:
        source: of the file.
        first: line that the function begins at; 1 or less for the module itself.
        name: of the variable.
        line: that runs. It does not count as reading the variable.

    Returns:
        Two lines, the last ones of their statements; 0 for none.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return 0, 0
    within: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            begins = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if begins == first and first > 1:
                within = node
    assigned = read = 0
    for node in ast.walk(within):
        if isinstance(node, ast.Name) and node.id == name and (node.end_lineno or node.lineno) <= line:
            if isinstance(node.ctx, ast.Store):
                assigned = max(assigned, node.lineno)
            elif node.lineno < line:
                read = max(read, node.end_lineno or node.lineno)
    return assigned, read if read >= assigned else 0
