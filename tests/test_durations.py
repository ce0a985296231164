"""What runs write down of their tests, which of these must say why they take long, and what goes out first."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.durations import LONG_S, Durations, read
from tests.schedule import longest_of

LONG = 1000 * LONG_S  # on a busy machine, too


def report(name: str, wall_s: float, *, says_why: bool = False) -> Any:
    return SimpleNamespace(nodeid=name, duration=wall_s, processor_s=0.5, says_why=says_why)


def session_of(plugin: Durations, *reports: Any) -> Any:
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    for each in reports:
        plugin.pytest_runtest_logreport(each)
    plugin.pytest_sessionfinish(session)
    return session


def lines_of(plugin: Durations) -> list[str]:
    lines: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    return lines


def test_phases_are_summed_and_other_runs_kept(tmp_path: Path) -> None:
    path = tmp_path / "build" / "durations.json"
    session_of(Durations(path, fails=False), report("a", 1.0), report("b", 1.0))
    session_of(Durations(path, fails=False), report("b", 2.0), report("b", 0.25))
    assert read(path) == {"a": {"wall_s": 1.0, "processor_s": 0.5}, "b": {"wall_s": 2.25, "processor_s": 1.0}}


def test_a_process_that_hands_its_reports_on_writes_nothing(tmp_path: Path) -> None:
    session_of(Durations(None, fails=True), report("a", LONG))
    assert not list(tmp_path.iterdir())


def test_a_long_test_says_why(tmp_path: Path) -> None:
    plugin = Durations(tmp_path / "durations.json", fails=True)
    session = session_of(plugin, report("short", 0.1), report("long", LONG), report("told", LONG, says_why=True))
    assert session.exitstatus == pytest.ExitCode.TESTS_FAILED
    assert [line.split()[0] for line in lines_of(plugin)[1:]] == ["`long`"]
    mild = Durations(tmp_path / "durations.json", fails=False)
    assert session_of(mild, report("long", LONG)).exitstatus == pytest.ExitCode.OK
    assert len(lines_of(mild)) == 2


def test_what_took_longest_goes_out_first() -> None:
    parts = ["tests/new.py", "tests/short.py", "tests/long.py::test", "tests/longer.py"]
    durations_s = {"tests/short.py": 1.0, "tests/long.py": 20.0, "tests/longer.py": 30.0}
    order: list[str] = []
    while parts:
        order.append(longest_of(parts, durations_s))
        parts.remove(order[-1])
    assert order == ["tests/new.py", "tests/longer.py", "tests/long.py::test", "tests/short.py"]
