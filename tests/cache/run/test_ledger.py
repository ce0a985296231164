import multiprocessing
import os
from pathlib import Path

import pytest

from stoker.cache.reading.run_counters import RunCounts, Totals, create_ledger, read_ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return create_ledger(tmp_path, "a-run")


def test_an_empty_ledger_has_no_processes(path: Path) -> None:
    assert read_ledger(path) == Totals(0, 0, 0, 0, 0, 0, 0, 0)


def test_counts_of_all_readers_come_together(path: Path) -> None:
    one, two = RunCounts(path), RunCounts(path)
    one.hit_bytes += 3
    two.hit_bytes += 4
    two.changes += 1
    totals = read_ledger(path)
    assert (totals.hit_bytes, totals.changes, totals.processes) == (7, 1, 2)


def test_what_is_counted_after_the_end_is_counted_for_nobody(path: Path) -> None:
    path.unlink()
    ledger = RunCounts(path)
    ledger.requests += 1
    assert ledger.requests == 1
    assert not path.exists()


def test_ledgers_that_runs_left_behind_go(path: Path, tmp_path: Path) -> None:
    os.utime(path, (0, 0))
    create_ledger(tmp_path, "another")
    assert [found.name for found in (tmp_path / "runs").iterdir()] == ["another"]


def _count(ledger: RunCounts) -> None:
    for _ in range(100):
        ledger.asked_bytes += 1
    os._exit(0)  # as data workers end


@pytest.mark.integration
@pytest.mark.timeout(30)
def test_forked_children_count_in_rows_of_their_own(path: Path) -> None:
    ledger = RunCounts(path)
    ledger.asked_bytes += 5
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_count, args=(ledger,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    totals = read_ledger(path)
    assert (totals.asked_bytes, totals.processes) == (305, 4)
