"""`stoker profile --served`: where steps spend their time while stoker's data workers make the batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.perf.diagnosis.rules import Context, judge
from stoker.records.events import LoaderOpened, RunEnded
from stoker.records.profile import Profile, read_profile
from stoker.records.runlog import find_run, read_run
from tests.profiling.test_command import PROGRAMS, environ, profile

__all__ = ["environ"]
pytestmark = pytest.mark.integration
OPTIONS = ("--no-prediction", "--steps", "20")


def of(folder: Path) -> Profile:
    return read_profile(find_run(str(folder / "stoker-runs")))


@pytest.mark.slow("steps are timed, under torch and under stoker")
def test_what_stoker_run_gains_is_measured(environ: dict[str, str], tmp_path: Path) -> None:
    """Samples that sleep: made one after another by torch, by several data workers at once by stoker."""
    found: dict[str, Profile] = {}
    for name, options in (("torch", OPTIONS), ("stoker", (*OPTIONS, "--served", "--warmup", "30"))):
        (tmp_path / name).mkdir()
        slow = {**environ, "PAUSE_S": "0.005", "STOKER_WORKERS": "4"}
        done = profile(PROGRAMS / "trains.py", environ=slow, cwd=tmp_path / name, options=options)
        assert done.returncode == 0, done.stderr
        assert "the end" not in done.stdout
        found[name] = of(tmp_path / name)
    torch, stoker = found["torch"], found["stoker"]
    assert torch.details.wait_s > 8 * 0.005
    assert stoker.details.wait_s < torch.details.wait_s / 2
    assert stoker.complete
    assert sum(stoker.parts.values()) == pytest.approx(stoker.seconds)
    assert torch.loader is not None
    assert stoker.loader is not None
    assert (torch.loader.tier, torch.loader.workers) == ("", 0)
    assert (stoker.loader.tier, stoker.loader.workers) == ("elastic", 4)
    assert stoker.loader.batch_size == 8
    assert stoker.usage.children_s > 0
    assert not any("data workers changed" in note for note in stoker.notes)


def test_it_leaves_the_records_of_a_run_and_no_process(environ: dict[str, str], tmp_path: Path) -> None:
    tag = f"served-{tmp_path.name}"
    options = (*OPTIONS, "--served", "--warmup", "5")
    done = profile(PROGRAMS / "trains.py", tag, environ={**environ, "PAUSE_S": "0.002"}, cwd=tmp_path, options=options)
    assert done.returncode == 0, done.stderr
    run = read_run(find_run(str(tmp_path / "stoker-runs")))
    assert [event.outcome for event in run.events if isinstance(event, RunEnded)] == ["finished"]
    assert {event.dataset for event in run.events if isinstance(event, LoaderOpened)} == {"Rows"}
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in lines if tag.encode() in line]


def test_a_program_that_ends_by_itself_is_served_to_its_end(environ: dict[str, str], tmp_path: Path) -> None:
    options = ("--no-prediction", "--served", "--warmup", "1", "--steps", "8", "--then", "continue")
    own = {**environ, "STEPS": "40", "STATUS": "5"}
    done = profile(PROGRAMS / "trains.py", environ=own, cwd=tmp_path, options=options)
    assert done.returncode == 5
    assert "the end" in done.stdout
    assert of(tmp_path).complete


@pytest.mark.slow("steps are timed")
def test_no_more_of_the_same_is_advised(environ: dict[str, str], tmp_path: Path) -> None:
    options = (*OPTIONS, "--served", "--warmup", "10")
    own = {**environ, "PAUSE_S": "0.02", "STOKER_WORKERS": "1"}
    profile(PROGRAMS / "trains.py", environ=own, cwd=tmp_path, options=options)
    found = of(tmp_path)
    assert found.verdict is not None
    assert found.verdict.kind == "INPUT-BOUND"
    assert found.verdict == judge(found, Context())
    assert found.verdict.action.command.startswith("stoker explain ")
    assert found.verdict.action.gain is None
    assert any("1 data worker, served by stoker (elastic)" in line for line in found.verdict.evidence)
