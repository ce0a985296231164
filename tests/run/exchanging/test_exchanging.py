"""`stoker run --comm auto`: what an unmodified program gets and what it is said of it, on two real ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker._version import __version__
from stoker.cli.report import main as report
from stoker.records.exchange_file import read_exchanges
from stoker.records.runlog import read_ranks
from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = str(Path(__file__).parent / "programs" / "exchanged.py")
FRAMEWORKS = str(Path(__file__).parent / "programs" / "framework_ranks.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def started(
    folder: Path,
    *words: str,
    launcher: tuple[str, ...] = (),
    served: bool = True,
    program: str = PROGRAM,
    way: str = "auto",
    allowed: str = "",
    limit_s: float = 110,
) -> subprocess.CompletedProcess[str]:
    """The program's end, under `stoker run --comm auto` or under plain python."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(folder / "hub")}
    leave = ("--comm-allow", allowed) if allowed else ()
    before = ("-m", "stoker", "run", "--comm", way, *leave, "--run-dir", str(folder / "run")) if served else ()
    done = programs.run(
        [sys.executable, *before, *launcher, program, *words], env={**environ, "OMP_NUM_THREADS": "1"}, cwd=folder,
        capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Stoker's lines."""
    return [line for line in done.stderr.splitlines() if line.startswith("stoker: ")]


def reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The report, as one line."""
    (run,) = read_ranks(folder / "run")
    assert run.header.rank == 0
    assert report([str(folder / "run")]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_program_without_replicas_has_a_line_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = said(started(tmp_path, "alone", "3"))
    assert "`--comm auto` needs a `DistributedDataParallel`, and this program made none: nothing was exchanged" in line
    assert "this program made none: nothing was exchanged" in reported(tmp_path, capsys)


def test_without_the_flag_nothing_acts_or_is_replaced(tmp_path: Path) -> None:
    """So `--comm` costs a step nothing where it is off."""
    program = tmp_path / "plain.py"
    program.write_text(
        "import sys\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "print([name for name in sys.modules if name.startswith(('stoker.train.', 'stoker.run.exchanging'))])\n"
        "print({each.__module__ for each in (DDP.__init__, DDP.register_comm_hook, DDP.no_sync, DDP.join_hook)})\n"
    )
    assert started(tmp_path, program=str(program), way="off").stdout.splitlines() == [
        "['stoker.train.settings']", "{'torch.nn.parallel.distributed'}",
    ]  # fmt: skip


@pytest.mark.slow("two ranks start python and torch")
def test_ranks_of_a_program_have_one_voice_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = started(tmp_path, "spawned", "8")
    assert len(set(done.stdout.split())) == 2, "the same weights on both ranks"
    (line,) = said(done)
    assert "exchange of Sequential: " in line
    assert "Exchange of Sequential" in reported(tmp_path, capsys)
    (run,) = read_exchanges(tmp_path / "run").replicas
    assert (run.ranks, run.step, run.steps) == (2, 6, 8)


@pytest.mark.slow("two ranks start python and torch, twice")
@pytest.mark.parametrize("way", ["auto", "average"])
def test_a_rank_of_another_version_is_declined_on_all_with_one_line(way: str, tmp_path: Path) -> None:
    plain = started(tmp_path, "unlike", "8", served=False)
    done = started(tmp_path, "unlike", "8", way=way)
    assert sorted(done.stdout.split()) == sorted(plain.stdout.split())
    (line,) = [line for line in said(done) if "version" in line]
    assert (
        f"`--comm {way}`: `stoker` must be one version on all ranks, got {__version__} on rank 0 and 0.0.1 on rank 1"
        in line
    )
    assert line.endswith("gradients are exchanged as torch does it")


@pytest.mark.slow("two ranks start python and torch, twice")
def test_a_programs_own_hook_stays_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = started(tmp_path, "hooked", "8", launcher=TORCHRUN, served=False)
    done = started(tmp_path, "hooked", "8", launcher=TORCHRUN)
    assert done.stdout == plain.stdout
    (line,) = said(done)
    assert "Sequential: the program registers its own hook for gradients, which stays" in line
    assert "Sequential keeps the program's own hook for gradients" in reported(tmp_path, capsys)


@pytest.mark.slow("two ranks start python and torch")
def test_modules_of_fsdp2_are_left_as_they_are_and_named(tmp_path: Path) -> None:
    (line,) = said(started(tmp_path, "sharded", "3"))
    assert "`--comm auto` leaves `Sequential` to FSDP2" in line


@pytest.mark.slow("two ranks import a framework, twice")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("framework", "library"), [("accelerate", "accelerate"), ("lightning", "lightning"), ("trainer", "transformers")]
)
def test_what_a_framework_replicates_is_served(framework: str, library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    ends: list[tuple[float, str]] = []
    for served in (False, True):
        done = started(tmp_path, framework, launcher=TORCHRUN, served=served, program=FRAMEWORKS)
        lines = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("rank "))
        assert [line[1] for line in lines] == ["0", "1"]
        assert lines[0][2:] == lines[1][2:], "the same weights on both ranks"
        ends.append((float(lines[0][2]), done.stderr))
    (plain, _), (trained, stderr) = ends
    assert trained == pytest.approx(plain, rel=1e-5)
    assert sum("exchange of " in line and "`stoker exchange " in line for line in stderr.splitlines()) == 1, stderr
    (run,) = read_exchanges(tmp_path / "run").replicas
    assert (run.ranks, run.steps) == (2, 12)
