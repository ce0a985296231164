"""Programs that fork, spawn and start others while a loader is open."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.harness import Trial, is_alive, name_of
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


TOTAL = float(3 * sum(number * number for number in range(32)))
SECOND = float(3 * sum(number * number for number in range(4, 8)))
LINES = {
    "fork_in_the_middle": [f"child {SECOND} ", f"child {SECOND} {TOTAL}", f"parent {TOTAL}"],
    "iterator_in_the_child": [  # torch's own iterator hangs there
        "child: a DataLoader iterator does not work in a forked child; call iter(loader) there",
        "parent 7",
    ],
    "daemon": ["daemon daemonic processes are not allowed to have children", "0"],
    "children": [f"fork {TOTAL}", "0", f"spawn {TOTAL}", "0"],
    "contexts": [f"spawn {TOTAL}", f"forkserver {TOTAL}"],
}
"""What plain python prints, too (the second aside)."""


@pytest.mark.slow("spawned processes start python and torch")
@pytest.mark.parametrize("way", LINES)
def test_same_as_plain(way: str, tmp_path: Path) -> None:
    with Trial(tmp_path, "forking.py", way) as trial:
        assert trial.finish(60.0) == 0, trial.errors()
        trial.check_nothing_left()
        assert trial.lines == LINES[way]
        assert "Traceback" not in trial.errors()


@pytest.mark.parametrize("way", ["orphaned", "popen"])
def test_workers_end_with_the_training_process(way: str, tmp_path: Path) -> None:
    """Whatever the program started lives on as under plain python, and does not keep workers alive."""
    with Trial(tmp_path, "forking.py", way) as trial:
        trial.expect("ready")
        ours = [*trial.workers(), *trial.templates()]
        assert len(ours) >= 2

        def find_others() -> set[int]:
            return {pid for pid in {*trial.processes()} - {trial.pid} if not name_of(pid).startswith("stoker_")}

        # The kernel lets the parent go on before the new program has its environment, by which it is found.
        others = await_that("the program's own process", find_others)
        assert len(others) == 1
        os.kill(trial.pid, signal.SIGKILL)
        await_that("workers end", lambda: not any(is_alive(pid) for pid in ours), 3.0)
        assert all(is_alive(pid) for pid in others)
        trial.tell()
        await_that("the other ends when told", lambda: not trial.processes(), 3.0)
