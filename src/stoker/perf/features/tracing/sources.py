"""On which lines of the program's source a variable is assigned, read and added to."""

from __future__ import annotations

import ast
import functools
import linecache
import os
from types import FrameType

_ADDING = frozenset(("append", "appendleft", "extend", "insert", "add", "update", "setdefault"))
"""Methods of containers that add to them."""


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


def adding_line(path: str, name: str) -> str:
    """The first line of a file that adds to a container, as ``train.py:31``; empty if none does.

    Args:
        path: of the file.
        name: of the variable, or of an attribute as ``self.kept``, whose object may have other names elsewhere.
    """
    line = adding_line_in("".join(linecache.getlines(path)), name)
    return f"{os.path.basename(path)}:{line}" if line else ""


@functools.lru_cache(maxsize=64)
def adding_line_in(source: str, name: str) -> int:
    """The first line of a source that adds to a container; 0 if none does. Arguments as above."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return 0
    return min((each.lineno for node in ast.walk(tree) for each in _added_to(node) if _is_named(each, name)), default=0)


def _added_to(node: ast.AST) -> list[ast.expr]:
    """What a call or an assignment adds to."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING:
        return [node.func.value]
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Assign):
        return [each.value for each in node.targets if isinstance(each, ast.Subscript)]
    return []


def _is_named(node: ast.expr, name: str) -> bool:
    if isinstance(node, ast.Subscript):  # a container inside of the one that is looked for
        return _is_named(node.value, name)
    owner, dot, attribute = name.rpartition(".")
    del owner
    if dot:
        return isinstance(node, ast.Attribute) and node.attr == attribute
    return isinstance(node, ast.Name) and node.id == name
