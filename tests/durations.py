"""How long tests take: each run writes it down, the schedule is made of it, and a test that takes long says why.

``python -m tests.durations`` saves what the runs of this checkout took, for the schedule of the next ones; whether a
test is long is read there, for the clock of a run says as much of the machine and of others on it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.marks import may_match
from tests.warm.programs import used_s

ROOT = Path(__file__).parents[1]
WRITTEN = ROOT / "build" / "durations.json"
"""The last duration of each test in this checkout: by the clock and of the processor, fixtures included."""
SAVED = Path(__file__).with_name("durations.json")
"""Seconds by the clock of each file with integration tests, and of each long test, when they were saved."""
LONG_S = 5.0
"""A test that takes longer on a quiet machine carries ``@pytest.mark.slow("why")``."""


def read(path: Path) -> dict[str, Any]:
    """What a file of durations holds; nothing where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def unexplained(reasons: Iterable[tuple[str, bool]], saved_s: Mapping[str, float]) -> list[str]:
    """Tests that were long when durations were saved, and do not say why.

    Args:
        reasons: ids of tests, each with whether it has a reason.
        saved_s: what is saved.
    """
    return [test for test, is_told in reasons if saved_s.get(test, 0.0) > LONG_S and not is_told]


class Durations:
    """A plugin that sums up what each test took, writes it down at the end, and names those that do not say why.

    Args:
        written: file for the durations; None in a process that another one of the same run hands its reports to.
    """

    def __init__(self, written: Path | None) -> None:
        self._written = written
        self._tests: dict[str, dict[str, float]] = {}
        self._unexplained: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        item.stash[_PROCESSOR] = _processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report: Any = yield
        now_s = _processor_s()
        # Attributes of a report reach the process that writes, from those that pytest-xdist runs tests in.
        report.processor_s, item.stash[_PROCESSOR] = now_s - item.stash.get(_PROCESSOR, now_s), now_s
        report.says_why = item.get_closest_marker("slow") is not None
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        test = self._tests.setdefault(report.nodeid, {"wall_s": 0.0, "processor_s": 0.0})
        test["wall_s"] += report.duration
        test["processor_s"] += getattr(report, "processor_s", 0.0)  # none where its process has died
        if test["wall_s"] > LONG_S * _crowd() and not getattr(report, "says_why", True):
            self._unexplained[report.nodeid] = test["wall_s"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._written is None or not self._tests:
            return
        self._written.parent.mkdir(exist_ok=True)
        rounded = {name: {key: round(s, 3) for key, s in test.items()} for name, test in self._tests.items()}
        self._written.write_text(json.dumps(read(self._written) | rounded, indent=0, sort_keys=True), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        processor_s = sum(test["processor_s"] for test in self._tests.values())
        wall_s = sum(test["wall_s"] for test in self._tests.values())
        terminalreporter.write_line(f"tests took {wall_s:.0f} s in sum, {processor_s:.0f} s of processors")
        for name, took_s in sorted(self._unexplained.items()):
            terminalreporter.write_line(f'`{name}` took {took_s:.1f} s and does not say why: @pytest.mark.slow("...")')


_PROCESSOR = pytest.StashKey[float]()


def _processor_s() -> float:
    return sum(os.times()[:4]) + used_s()


def _crowd() -> float:
    """How many processes want each core, at least one."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def main() -> None:
    """Saves the durations of files with integration tests, and of long tests; of what was not run the old ones stay."""
    found: dict[str, float] = defaultdict(float)
    ran = read(WRITTEN)
    for name, test in ran.items():
        found[name.partition("::")[0]] += test["wall_s"]
        if test["wall_s"] > LONG_S:
            found[name] = test["wall_s"]
    before = {name: took_s for name, took_s in read(SAVED).items() if name not in ran}
    kept = before | {name: round(took_s, 1) for name, took_s in found.items() if took_s >= 0.1}
    kept = {name: took_s for name, took_s in kept.items() if "::" in name or may_match(ROOT / name, "integration")}
    SAVED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
