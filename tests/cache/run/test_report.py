"""Who says what was cached: the process that `stoker run` became, however the launcher wrote its number."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.cache.reading.run_counters import RunCounts, create_ledger
from stoker.cache.settings import CacheSettings
from stoker.run.caching import hook
from stoker.run.caching.cache_run import CacheRun
from stoker.run.environment import CACHE_ENV


@pytest.mark.parametrize("own", [True, False], ids=["its own process", "a child of it"])
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")], ids=["spread", "dense"])
@pytest.mark.parametrize("pid_last", [True, False], ids=["pid last", "pid first"])
def test_one_process_of_a_run_reports(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own: bool,
    separators: tuple[str, str],
    pid_last: bool,
) -> None:
    ledger = create_ledger(tmp_path, f"run-{os.getpid()}")  # where a child finds the number as well
    RunCounts(ledger).asked_bytes += 7
    cache = CacheSettings(directory=str(tmp_path))
    told = CacheRun(cache=cache, ledger=str(ledger), pid=os.getpid() + (not own), quiet=False)
    fields = json.loads(told.to_json())
    pid = {"pid": fields.pop("pid")}
    fields = {**fields, **pid} if pid_last else {**pid, **fields}
    monkeypatch.setenv(CACHE_ENV, json.dumps(fields, separators=separators))
    hook._report()
    said = capsys.readouterr().err
    assert said.startswith("stoker: cache: ") if own else not said
    assert ledger.exists() is not own
