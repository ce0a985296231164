"""Whether a program leaves gradients alone between its backward pass and the optimizer's step, by its source.

A trace sees what two steps do. That no other step looks at a gradient, or leaves its update out, is read in the source:
nothing of the program asks for gradients, and its step follows the backward pass in the same block of lines.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import FrameType

from stoker.core.code.sources import file_shown
from stoker.feed.purity.objects import is_library

_ASKING = frozenset({
    "grad", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "GradScaler", "unscale_",
    "register_post_accumulate_grad_hook",
})  # fmt: skip
"""Attributes and names by which programs ask for gradients."""
BY_WEIGHT = frozenset({"grad", "register_post_accumulate_grad_hook"})
"""Those by which a program sees the gradient of one weight, and not a norm of all."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Pass)
_CHANGING = frozenset({"step", "param_groups", "zero_grad"})
"""Attributes of what may change the update between the two."""


def asked_for(names: Collection[str] = _ASKING) -> str:
    """Where a source file of the program asks for gradients, as a part of a sentence; empty if none does.

    Args:
        names: attributes and names by which it does.
    """
    for file in own_files():
        tree = _parsed(file)
        if tree is None:
            return f"`{file_shown(str(file))}` cannot be read"
        for node in ast.walk(tree):
            name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            if name in names and isinstance(getattr(node, "ctx", None), ast.Load):
                return f"{file_shown(str(file))}:{getattr(node, 'lineno', 0)} asks for gradients (`{name}`)"
    return ""


def own_files() -> list[Path]:
    """Source files of the program that are loaded, those of libraries left out."""
    found: dict[Path, None] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in ("torch", "stoker"):
            continue
        if file.endswith(".py") and Path(file).is_file() and not is_library(file):
            found[Path(file)] = None
    return list(found)


def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def not_followed(frame: FrameType | None) -> str:
    """Why a step need not follow each backward pass, as a part of a sentence; empty if it does.

    Args:
        frame: that called the optimizer's step, or what it was called through.
    """
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "stoker"):
        frame = frame.f_back
    if frame is None or is_library(frame.f_code.co_filename):
        return "a library calls the optimizer's step"
    line = frame.f_lineno
    where = f"{file_shown(frame.f_code.co_filename)}:{line}"
    tree = _parsed(Path(frame.f_code.co_filename))
    if tree is None:
        return f"{where} cannot be read"
    for block in _blocks(tree):
        for place, statement in enumerate(block):
            if _calls(statement, "step") and statement.lineno <= line <= (statement.end_lineno or line):
                return "" if _is_after_backward(block[:place]) else f"{where} need not follow each backward pass"
    return f"{where} steps under a condition"


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and not isinstance(node, ast.If):
                yield block


def _calls(statement: ast.stmt, method: str) -> bool:
    """Whether a statement is a call of a method of this name, and nothing else."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    return isinstance(called, ast.Attribute) and called.attr == method


def _is_after_backward(before: Sequence[ast.stmt]) -> bool:
    """Whether the last of these statements that is not plain is a backward pass."""
    for statement in reversed(before):
        if _calls(statement, "backward"):
            return True
        names = {node.attr for node in ast.walk(statement) if isinstance(node, ast.Attribute)}
        if not isinstance(statement, _SIMPLE) or names & _CHANGING:
            return False
    return False
