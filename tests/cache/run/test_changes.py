"""What is said of objects that change while a run reads them: at once, once a path, a few times."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cache.reading.run_counters import create_ledger
from stoker.run.caching.changes import MOST_TOLD, Teller, forget


def test_each_path_is_named_once_by_all_processes_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = create_ledger(tmp_path, "run")
    processes = [Teller(ledger, quiet=False) for _ in range(3)]
    for process in processes:
        for _ in range(2):
            process.tell("s3://bucket/a")
    assert capsys.readouterr().err == (
        "stoker: cache: s3://bucket/a changed at its source during the run; "
        "what is read from now on is the new version\n"
    )
    for number in range(3 * MOST_TOLD):
        processes[number % 3].tell(f"s3://bucket/{number}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MOST_TOLD
    assert "more objects changed" in lines[-1]
    forget(ledger)
    assert list(ledger.parent.iterdir()) == [ledger]


def test_a_quiet_run_and_one_that_has_ended_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Teller(create_ledger(tmp_path, "run"), quiet=True).tell("s3://bucket/a")
    Teller(tmp_path / "gone" / "run", quiet=False).tell("s3://bucket/a")
    assert capsys.readouterr().err == ""
