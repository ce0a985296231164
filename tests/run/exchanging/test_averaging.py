"""`stoker run --comm average`: modules of an unmodified program on two real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.records.events import ModelAveraged, RunEnded
from stoker.records.runlog import read_ranks
from stoker.run.exchanging.averaging import DIFFER, line_of_averages
from stoker.ui.exchange.averaging_text import averages_of, write_averaging
from tests.warm import programs

PROGRAM = Path(__file__).parent / "programs" / "averaged.py"


def record(**given: Any) -> ModelAveraged:
    facts = {
        "t_s": 1.0, "model": "Net 0", "ranks": 2, "step": 37, "steps_since": 4, "period": 4, "agreement": 0.84,
        "compute_s": 0.01, "exchange_s": 0.01, "bytes": 512, "reason": "period",
    }  # fmt: skip
    return ModelAveraged(**(facts | given))


def test_the_line_at_the_end() -> None:
    line = line_of_averages(27, record())
    assert "Net 0: 27 averages in 37 steps, the last period 4 steps, agreement 0.84" in line
    assert DIFFER in line
    assert "agreement" not in line_of_averages(1, record(agreement=None))


def started(folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    command = [sys.executable, "-m", "stoker", "run", "--comm", "average", "--run-dir", str(folder / "run")]
    return programs.run(
        [*command, str(PROGRAM), str(folder)], env={**environ, "OMP_NUM_THREADS": "1"}, cwd=folder,
        capture_output=True, text=True, timeout=110,
    )  # fmt: skip


@pytest.mark.integration
@pytest.mark.slow("two ranks load torch and train four models")
def test_modules_of_a_program_are_averaged_and_recorded(tmp_path: Path) -> None:
    done = started(tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))

    # Gradients stay on their rank; what is saved is the last mean. A hook, `join()` and static graphs exchange.
    assert first["averaged"]["apart"] == second["averaged"]["apart"] == 40
    assert first["averaged"]["saved"] == second["averaged"]["saved"]
    assert [first[part] for part in ("hooked", "joined", "static")] == [
        second[part] for part in ("hooked", "joined", "static")
    ]

    ranks = read_ranks(tmp_path / "run")
    assert len(ranks) == 2
    courses = [averages_of(run.events) for run in ranks]
    decided = [[[(each.step, each.period) for each in model] for model in course] for course in courses]
    assert decided[0] == decided[1]
    whole, hooked, joined = courses[0]
    assert [each.t_s for each in whole] == sorted(each.t_s for each in whole)
    assert (hooked[-1].step, joined[-1].step) == (20, 18), "one more average comes before the exchange"
    assert all(isinstance(run.events[-1], RunEnded) for run in ranks)
    assert "Losses differ from those of DDP" in write_averaging(whole)

    lines = done.stderr.splitlines()
    assert sum(DIFFER in line and "train apart" in line for line in lines) == 1, "one rank speaks for all"
    assert sum("model averaging of" in line for line in lines) == 3
    assert sum("its own hook" in line for line in lines) == 1
    assert sum("`join()`" in line for line in lines) == 1
    assert sum("`static_graph`" in line for line in lines) == 1
    assert "nothing was averaged" not in done.stderr


@pytest.mark.integration
def test_a_program_without_replicas_gets_a_line(tmp_path: Path) -> None:
    program = tmp_path / "alone.py"
    program.write_text("import torch\n")
    done = programs.run(
        [sys.executable, "-m", "stoker", "run", "--comm", "average", str(program)],
        env={k: v for k, v in os.environ.items() if not k.startswith("STOKER_")}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "needs a `DistributedDataParallel`, and this program made none: nothing was averaged" in done.stderr
