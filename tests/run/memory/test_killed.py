"""A run that the kernel killed for lack of memory is told of by the program's next run, and by no other one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.records.events import AnyEvent, Notice, RunEnded, RunHeader, WorkerLost
from stoker.records.runlog import Run, RunLog, interrupted_run
from stoker.run.memory.killed import killed_run
from stoker.ui.memory.ended_text import write_killed
from tests.warm import programs

PROGRAM = """
import os, time, torch
from torch.utils.data import DataLoader
for batch in DataLoader(torch.arange(64), batch_size=8):
    time.sleep(float(os.environ["PAUSE"]))
"""


def header(kills: int | None = 3, **changes: Any) -> RunHeader:
    plain = RunHeader(
        run_id="a", started_unix_s=0.0, argv=["train.py"], cwd="/here", python="", stoker="", torch="", numpy="",
        hostname="box", cores=1.0, memory_bytes=8 * 10**9, accelerator="", kills_for_memory=kills,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def run(*events: AnyEvent, kills: int | None = 3) -> Run:
    return Run(header=header(kills), events=list(events), folder=Path("runs/a"))


def test_only_kills_since_its_start_that_no_worker_explains_count() -> None:
    last = Notice(t_s=12.0, text="")
    found = killed_run(run(last), 4, "box")
    assert found is not None
    assert (found.after_s, found.kills, found.memory_bytes) == (12.0, 1, 8 * 10**9)
    assert killed_run(run(last), 3, "box") is None, "none since"
    assert killed_run(run(last), 0, "box") is None, "the machine was started again"
    assert killed_run(run(last), 4, "other") is None, "another machine's count"
    assert killed_run(run(last, kills=None), 4, "box") is None, "a record of an older stoker"
    lost = WorkerLost(t_s=1.0, loader=0, worker=0, pid=1, cause="killed for memory", released=1)
    assert killed_run(run(lost, last), 4, "box") is None, "a data worker was killed, and the program went on"
    assert killed_run(run(lost, last), 5, "box") is not None


def test_what_is_said() -> None:
    found = killed_run(run(Notice(t_s=12.0, text="")), 6, "box")
    assert found is not None
    lines = write_killed(found, "stoker memory train.py")
    assert lines == [
        "the kernel killed the last run of this program about 12.0 s after its start (or another one: it has killed 3 "
        "processes since): it ran out of memory, of 8.0 GB (runs/a)",
        "what holds a step's memory, by line, and what lowers it: stoker memory train.py",
    ]
    assert len(write_killed(found, "")) == 1


def test_the_latest_run_of_the_same_program_counts(tmp_path: Path) -> None:
    def record(name: str, *events: AnyEvent, **changes: Any) -> RunLog:
        log = RunLog(tmp_path / name, header(run_id=name, **changes))
        for event in (Notice(t_s=1.0, text=""), *events):
            log.on_event(event)
        return log

    record("first").close()
    record("other", argv=["other.py"]).close()
    assert interrupted_run(tmp_path, ["train.py"], "/there") is None
    found = interrupted_run(tmp_path, ["train.py"], "/here")
    assert found is not None
    assert found.header.run_id == "first"
    running = record("second")
    os.utime(tmp_path / "second", (time.time() + 9, time.time() + 9))
    assert interrupted_run(tmp_path, ["train.py"], "/here") is None, "it still runs"
    running.on_event(RunEnded(t_s=2.0, outcome="finished"))
    running.close()
    assert interrupted_run(tmp_path, ["train.py"], "/here") is None, "it has ended"


@pytest.mark.integration
@pytest.mark.slow("a program of torch, four times")
def test_the_next_run_of_a_killed_program_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    def started(pause: str, *words: str) -> programs.Program:
        command = [sys.executable, "-m", "stoker", "run", "train.py", *words]
        environ = {**os.environ, "PAUSE": pause}
        return programs.Program(command, cwd=tmp_path, env=environ, stderr=programs.PIPE, text=True)

    with started("60") as first:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("stoker-runs/*/run.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    (path,) = tmp_path.glob("stoker-runs/*/run.json")
    # The kernel's own count cannot be raised here: the count at the program's start is lowered instead.
    text = path.read_text()
    kills = msgspec.json.decode(text, type=RunHeader).kills_for_memory
    assert kills is not None
    path.write_text(text.replace(f'"kills_for_memory": {kills}', f'"kills_for_memory": {kills - 1}'))
    words = "the kernel killed the last run of this program"
    assert words not in started("0", "other").communicate()[1]
    assert words in started("0").communicate()[1]
    assert words not in started("0").communicate()[1], "it is told once"
