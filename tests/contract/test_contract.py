"""Every case under torch's own loader and under ``stoker run``: equal transcripts, and stoker really served them.

Cases of a process run together, once per side, when the first of them is asked for; each is then a test of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .cases import CASES
from .compare import GroupResult, difference, notes, run_both
from .registry import PROCESSES, Case, process_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.slow("the first test of a process waits for all of its cases, on both sides"),
]

Results = dict[str, tuple[GroupResult, GroupResult]]


@pytest.fixture(scope="module")
def results() -> Results:
    """What each process gave; filled on demand."""
    return {}


@pytest.fixture
def sides(
    case: Case, results: Results, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GroupResult, GroupResult]:
    """Both sides of the case's process, restricted to the cases that this session has selected."""
    process = process_of(case.group)
    if process not in results:
        chosen = _selected(request.session.items, process)
        results[process] = run_both(chosen, "stoker", Path(tmp_path_factory.mktemp(process)))
    return results[process]


def _selected(items: list[Any], process: str) -> list[str]:
    specs = [item.callspec for item in items if hasattr(item, "callspec")]
    found = [spec.params.get("case") for spec in specs]
    names = {c.name for c in found if isinstance(c, Case) and c.group in PROCESSES[process]}
    return [name for name in CASES if name in names]


@pytest.mark.parametrize("case", list(CASES.values()), ids=lambda case: f"{case.group}-{case.name}")
def test_equal_to_torch(case: Case, sides: tuple[GroupResult, GroupResult]) -> None:
    found = difference(case, *sides)
    if found:
        pytest.fail(f"`{case.name}`: {found}\nalone: python -m tests.contract.compare {case.name}", pytrace=False)
    if case.served:
        check_served(case, sides)


def check_served(case: Case, sides: tuple[GroupResult, GroupResult]) -> None:
    """Equality alone would also hold if stoker did nothing."""
    for side, package in zip(sides, ("torch", "stoker"), strict=True):
        allowed = (f"{package}.", "builtins.")  # a subclass's own generator around the iterator
        seen = [n for n in map(_as_dict, notes(side.transcripts.get(case.name, []))) if n.get("workers", 0) > 0]
        others = {n["iterator"] for n in seen} - {n["iterator"] for n in seen if n["iterator"].startswith(allowed)}
        assert not others, f"`{case.name}`: a loader with workers was served by {sorted(others)}"


def _as_dict(note: Any) -> dict[str, Any]:
    return dict(note["items"]) if isinstance(note, dict) and "items" in note else {}
