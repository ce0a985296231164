"""What decides in the feed imports no clock, no random numbers, no processes and no bytes: its tests need none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import stoker.feed.state

FOLDER = Path(stoker.feed.state.__file__).parent
ALLOWED = {
    "__future__", "bisect", "collections", "collections.abc", "dataclasses", "enum", "heapq", "math", "typing",
    "msgspec", "msgspec.structs", "numpy", "stoker.core.errors", "stoker.core.slots.free_slots", "stoker.core.units",
    "stoker.feed.program",
    "stoker.feed.scaling",
}  # fmt: skip
"""``numpy`` for indices: what pinned workers have made is kept small."""


def strangers(source: str) -> set[str]:
    """What a module imports and should not, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name for name in found - ALLOWED if not name.startswith("stoker.feed.state")}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_of_the_state_is_pure(path: Path) -> None:
    assert not strangers(path.read_text())


@pytest.mark.parametrize(
    "planted", ["import time", "def late():\n    from random import random", "from stoker.feed.shell import crew"]
)
def test_an_impure_one_is_found(planted: str) -> None:
    assert strangers(planted)
