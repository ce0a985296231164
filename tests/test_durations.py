"""What runs write down of their tests, which of these must say why they take long, and what goes out first."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import durations
from tests.durations import LONG_S, Durations, read, unexplained
from tests.schedule import longest_of

LONG = 1000 * LONG_S  # on a busy machine, too


def report(name: str, wall_s: float, *, says_why: bool = False) -> Any:
    return SimpleNamespace(nodeid=name, duration=wall_s, processor_s=0.5, says_why=says_why)


def run(plugin: Durations, *reports: Any) -> None:
    for each in reports:
        plugin.pytest_runtest_logreport(each)
    plugin.pytest_sessionfinish()


def lines_of(plugin: Durations) -> list[str]:
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    return lines


def test_phases_are_summed_and_other_runs_kept(tmp_path: Path) -> None:
    path = tmp_path / "build" / "durations.json"
    run(Durations(path), report("a", 1.0), report("b", 1.0))
    run(Durations(path), report("b", 2.0), report("b", 0.25))
    assert read(path) == {"a": {"wall_s": 1.0, "processor_s": 0.5}, "b": {"wall_s": 2.25, "processor_s": 1.0}}


def test_a_process_that_hands_its_reports_on_writes_nothing(tmp_path: Path) -> None:
    run(Durations(None), report("a", LONG))
    assert not list(tmp_path.iterdir())


def test_a_long_test_says_why(tmp_path: Path) -> None:
    plugin = Durations(tmp_path / "durations.json")
    run(plugin, report("short", 0.1), report("long", LONG), report("told", LONG, says_why=True))
    assert [line.split()[0] for line in lines_of(plugin)[1:]] == ["`long`"]


def test_whether_a_test_is_long_is_what_was_saved() -> None:
    saved_s = {"file.py": 20.0, "file.py::long": 9.0, "file.py::told": 9.0, "file.py::once": LONG_S}
    reasons = [(f"file.py::{name}", name == "told") for name in ("long", "told", "once", "new")]
    assert unexplained(reasons, saved_s) == ["file.py::long"]


def test_durations_are_saved_of_files_and_of_long_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test_it.py"
    path.write_text("pytestmark = pytest.mark.integration\n")
    file, other = str(path), str(tmp_path / "test_gone.py")
    monkeypatch.setattr(durations, "WRITTEN", tmp_path / "written.json")
    monkeypatch.setattr(durations, "SAVED", tmp_path / "saved.json")
    saved_s = {other: 3.0, f"{file}::quick": 8.0, f"{file}::not run": 8.0}
    durations.SAVED.write_text(json.dumps(saved_s))
    run(Durations(durations.WRITTEN), report(f"{file}::quick", 1.0), report(f"{file}::long", LONG_S + 1))
    durations.main()
    expected = {file: LONG_S + 2, f"{file}::long": LONG_S + 1, f"{file}::not run": 8.0}
    assert read(durations.SAVED) == expected


def test_what_took_longest_goes_out_first() -> None:
    saved_as_quick = ["tests/bars.py::cpu", "tests/bars.py::gpu", "tests/bars.py::names"]
    parts = {
        "tests/short.py": ["tests/short.py::test"],
        "tests/long.py::test": ["tests/long.py::test"],
        "tests/longer.py": ["tests/longer.py::test"],
        "tests/bars.py": saved_as_quick,
        "tests/new.py": ["tests/new.py::test"],
    }
    durations_s = {"tests/short.py": 1.0, "tests/long.py": 20.0, "tests/longer.py": 30.0, "tests/bars.py": 0.5}
    durations_s |= dict.fromkeys(saved_as_quick[:2], 20.0)
    order: list[str] = []
    while parts:
        order.append(longest_of(parts, durations_s))
        del parts[order[-1]]
    assert order == ["tests/new.py", "tests/bars.py", "tests/longer.py", "tests/long.py::test", "tests/short.py"]
