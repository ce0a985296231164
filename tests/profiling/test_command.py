"""`stoker profile` on real programs: what it measures, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.perf.prediction.anchor import Anchor
from stoker.records.profile import Profile, read_profile
from stoker.records.runlog import find_run
from tests.warm import programs

pytestmark = pytest.mark.integration

PROGRAMS = Path(__file__).parent / "programs"
QUICK = ("--no-prediction", "--warmup", "1", "--steps", "12")


@pytest.fixture
def environ() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
    source = str(Path(stoker.__file__).parents[1])
    return {**kept, "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


def profile(
    *words: object, environ: dict[str, str], cwd: Path, options: tuple[str, ...] = QUICK
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", "profile", *options, *map(str, words)]
    return programs.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)


def found_in(folder: Path) -> Profile:
    return read_profile(find_run(str(folder / "stoker-runs")))


class TestStops:
    def test_slow_samples_are_input_bound(self, environ: dict[str, str], tmp_path: Path) -> None:
        done = profile(PROGRAMS / "trains.py", environ={**environ, "PAUSE_S": "0.002"}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "the end" not in done.stdout, "it was ended before"
        found = found_in(tmp_path)
        assert found.complete
        assert found.verdict is not None
        assert found.verdict.kind == "INPUT-BOUND"
        assert found.verdict.severity == "high"
        assert found.verdict.action.command.startswith("stoker run ")
        gain = found.verdict.action.gain
        assert gain is not None
        share = found.details.wait_s / found.seconds
        assert gain.saved_frac <= gain.saved_frac_high <= share * 1.001, "not more than the wait can be gained"
        assert sum(found.parts.values()) == pytest.approx(found.seconds)
        assert 8 * 0.002 <= found.details.wait_s <= found.seconds
        assert "INPUT-BOUND" in done.stderr
        assert "was ended" in done.stderr

    def test_the_records_are_an_anchor(self, environ: dict[str, str], tmp_path: Path) -> None:
        done = profile(PROGRAMS / "trains.py", environ=environ, cwd=tmp_path, options=(*QUICK, "--json", "-"))
        printed = json.loads(done.stdout)
        folder = find_run(str(tmp_path / "stoker-runs"))
        anchor = Anchor.from_run(folder)
        assert anchor.gpu == "cpu"
        assert anchor.batch_size == 8
        assert anchor.seconds == pytest.approx(printed["seconds"])
        assert sum(anchor.parts.values()) == pytest.approx(anchor.seconds)
        report = programs.run(
            [sys.executable, "-m", "stoker", "report", str(folder)],
            env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert report.returncode == 0, report.stderr


READS = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
width = int(sys.stdin.readline())
model = torch.nn.Linear(width, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.zeros(800, width)), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow("a program is measured and traced")
def test_a_program_that_reads_its_input_is_traced_on_the_same(environ: dict[str, str], tmp_path: Path) -> None:
    program, given = tmp_path / "reads.py", tmp_path / "input.txt"
    program.write_text(READS)
    given.write_text("16\n")
    options = [*QUICK[1:], "--then", "continue"]
    with given.open("rb") as file:
        done = programs.run(
            [sys.executable, "-m", "stoker", "profile", *options, str(program)], env=environ, cwd=tmp_path, stdin=file,
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = found_in(tmp_path)
    assert found.features, found.unpredicted
    assert found.batch_size == 8


class TestEnds:
    def test_a_program_that_ends_first_is_reported_with_its_status(
        self, environ: dict[str, str], tmp_path: Path
    ) -> None:
        done = profile(PROGRAMS / "trains.py", environ={**environ, "STEPS": "9", "STATUS": "7"}, cwd=tmp_path)
        assert done.returncode == 7
        assert "the end" in done.stdout
        found = found_in(tmp_path)
        assert not found.complete
        assert found.steps >= 1

    def test_its_exception_is_its_own(self, environ: dict[str, str], tmp_path: Path) -> None:
        done = profile(PROGRAMS / "trains.py", environ={**environ, "STEPS": "9", "FAIL": "1"}, cwd=tmp_path)
        assert done.returncode == 1
        assert "ValueError: on purpose" in done.stderr
        assert found_in(tmp_path).outcome == "ValueError"

    def test_without_steps_it_says_so(self, environ: dict[str, str], tmp_path: Path) -> None:
        program = tmp_path / "nothing.py"
        program.write_text("import torch\nprint('hello')\n")
        done = profile(program, environ=environ, cwd=tmp_path)
        assert done.returncode == 0
        assert done.stdout == "hello\n"
        assert "without a step that could be measured" in done.stderr

    def test_going_on(self, environ: dict[str, str], tmp_path: Path) -> None:
        options = (*QUICK, "--then", "continue")
        done = profile(
            PROGRAMS / "trains.py", environ={**environ, "STEPS": "60", "STATUS": "3"}, cwd=tmp_path, options=options
        )
        assert done.returncode == 3
        assert "the end" in done.stdout
        assert found_in(tmp_path).complete

    def test_interrupted(self, environ: dict[str, str], tmp_path: Path) -> None:
        """As by Ctrl-C in a terminal: all processes of the group get it."""
        process = programs.Program(
            [sys.executable, "-m", "stoker", "profile", "--no-prediction", "--steps", "500", PROGRAMS / "trains.py"],
            env={**environ, "PAUSE_S": "0.005", "TELL": ""}, cwd=tmp_path, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "under way\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT, said
        assert "KeyboardInterrupt" in said
        assert found_in(tmp_path).outcome == "KeyboardInterrupt"
        assert "stoker profile" in said
