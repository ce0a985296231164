"""Real ranks of a real data-parallel program: changed after a checkpoint, and gone without a trace whenever it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stoker
from stoker.records.events import SizesChosen
from stoker.records.runlog import read_run
from tests.faults.harness import is_alive
from tests.waiting import await_that

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.slow("python and torch start for torchrun and each rank, once for each number of ranks"),
]
PROGRAM = Path(__file__).parent / "programs" / "continues.py"
MARK = "ELASTIC_TRIAL"


class Trial:
    """A run of the program, whose processes are all found by a variable that they inherit."""

    def __init__(self, folder: Path, *options: str, **environ: object) -> None:
        self.folder, self._mark, self.errors = folder, uuid.uuid4().hex, list[str]()
        (folder / "temporary").mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "PYTHON"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "run", *options, str(PROGRAM)],
            env={
                **kept,
                **{name: str(value) for name, value in environ.items()},
                MARK: self._mark,
                "PYTHONPATH": str(Path(stoker.__file__).parents[1]),
                "TMPDIR": str(folder / "temporary"),
                "OMP_NUM_THREADS": "1",
            },
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.errors.append(line)

    @property
    def said(self) -> str:
        return "".join(self.errors)

    def await_said(self, text: str) -> None:
        await_that(f"{text!r} in {self.said}", lambda: text in self.said, timeout_s=60.0)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Its status and what it printed; nothing of it is left by then."""
        assert self._process.stdout is not None
        out = self._process.stdout.read()
        status = self._process.wait(60.0)
        self._reader.join(10.0)
        await_that("its processes end", lambda: not self.living())
        left = [path.name for path in (self.folder / "temporary").iterdir()]
        assert [name for name in left if name.startswith(("stoker", "torchelastic"))] == []
        return status, out

    def close(self) -> None:
        """Kills what a failed test left."""
        for pid in self.living():
            os.kill(pid, signal.SIGKILL)
        self._process.wait(10.0)
        self._reader.join(10.0)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def living(self) -> list[int]:
        return [pid for pid in _pids() if is_alive(pid) and f"{MARK}={self._mark}" in _environ_of(pid)]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Starts a trial in a folder of its own."""
    trials: list[Trial] = []

    def start(*options: str, **environ: object) -> Trial:
        trials.append(Trial(tmp_path, *options, **environ))
        return trials[-1]

    yield start
    for trial in trials:
        trial.close()


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _environ_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def starts_of(out: str) -> list[tuple[int, int]]:
    """At which batch the program began each time, and with how many ranks."""
    return [(int(done), int(ranks)) for done, ranks in re.findall(r"begins at (\d+) with (\d+)", out)]


def test_a_second_training_worker_after_a_checkpoint(started: Callable[..., Trial], tmp_path: Path) -> None:
    """Steps that cost the same for two ranks: they do twice as much, and continue where the first left off."""
    trial = started("--training-workers", "1:2", EVERY=50, STEP_S=0.03, BATCHES=260)
    status, out = trial.ended()
    assert status == 0, trial.said
    (first, one), (again, two) = starts_of(out)
    assert (first, one, two) == (0, 1, 2)
    assert again % 50 == 0 < again < 260, "from its checkpoint"
    assert re.search(r"ends at 26\d with 2", out)
    assert re.search(r"promise [12]\.\d\dx the rate .* restart .* steps? again: repaid after", trial.said)
    assert "the global batch becomes 2 samples, from 1" in trial.said
    assert trial.said.index("the global batch becomes") < trial.said.index("Throughput")
    last = max((tmp_path / "stoker-runs").iterdir())
    chosen = [event for event in read_run(last).events if isinstance(event, SizesChosen)]
    assert (chosen[0].workers, chosen[0].changes) == (2, 1)
    assert "Ranks       2 training workers" in trial.said


def test_without_checkpoints_there_is_no_change(started: Callable[..., Trial]) -> None:
    """Weights that are saved for themselves are none: the program would begin from the start."""
    trial = started("--training-workers", "1:2", EVERY=40, BATCHES=160, PLAIN=1)
    status, out = trial.ended()
    assert (status, starts_of(out)) == (0, [(0, 1)])
    assert "their number changes only after a checkpoint" in " ".join(trial.said.split())


MOMENTS: dict[str, Callable[[Trial], None]] = {
    "at the start": lambda trial: await_that("ranks", lambda: len(trial.living()) > 1),
    "in training": lambda trial: await_that("a checkpoint", (trial.folder / "checkpoint.pt").exists, 60.0),
    "while ranks end": lambda trial: trial.await_said("starting again"),
    "while ranks start again": lambda trial: await_that(
        "a second run", lambda: trial.said and len(list((trial.folder / "stoker-runs").glob("*-2"))) == 1, 60.0
    ),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_leaves_nothing(moment: str, number: int, started: Callable[..., Trial]) -> None:
    trial = started("--training-workers", "1:2", EVERY=50, STEP_S=0.03, BATCHES=10**6)
    MOMENTS[moment](trial)
    trial.signal(number)
    status, _ = trial.ended()
    assert status != 0


def test_a_launcher_that_is_killed_leaves_no_process(started: Callable[..., Trial], tmp_path: Path) -> None:
    trial = started("--training-workers", "2", BATCHES=10**6)
    await_that("a checkpoint", (tmp_path / "checkpoint.pt").exists, 60.0)
    trial.signal(signal.SIGKILL)
    await_that("its processes end", lambda: not trial.living(), 40.0)


def test_a_torchrun_that_is_killed_takes_its_ranks_with_it(started: Callable[..., Trial], tmp_path: Path) -> None:
    trial = started("--training-workers", "2", BATCHES=10**6)
    await_that("a checkpoint", (tmp_path / "checkpoint.pt").exists, 60.0)
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in trial.living()}
    [agent] = [pid for pid, command in commands.items() if b"torch.distributed.run" in command]
    os.kill(agent, signal.SIGKILL)
    assert trial.ended()[0] == 128 + signal.SIGKILL


def test_a_rank_that_fails_ends_the_program_as_torchrun_does(started: Callable[..., Trial]) -> None:
    trial = started("--training-workers", "1:2", FAILS=1)
    assert trial.ended()[0] == 1
    assert "ChildFailedError" in trial.said


def test_a_change_that_fails_is_taken_back(started: Callable[..., Trial]) -> None:
    trial = started("--training-workers", "1:2", EVERY=50, STEP_S=0.03, BATCHES=260, FAILS=2)
    status, out = trial.ended()
    assert status == 0, trial.said
    assert [ranks for _, ranks in starts_of(out)] == [1, 1]
    assert "2 training workers failed at once: 1 training worker again" in trial.said
