"""What a launcher of ranks refuses and decides, with ranks that are none: records written as they would write them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from stoker.core.errors import ConfigError
from stoker.records import events
from stoker.records.runlog import read_run
from stoker.run.elastic import launcher
from stoker.run.elastic.launcher import check_program, config_of
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings
from stoker.scale.size_settings import range_of
from tests.run.elastic.test_reading import HEADER, course


class TestSettings:
    @pytest.mark.parametrize(("text", "found"), [("1:4", (1, 4)), ("2", (2, 2)), ("3:3", (3, 3))])
    def test_a_range(self, text: str, found: tuple[int, int]) -> None:
        assert range_of(text) == found
        assert RunSettings.of(training_workers=text).sizes.range == found

    @pytest.mark.parametrize("text", ["", "0", "4:1", "1:", ":4", "a", "1:4:8", "0:2", "9999"])
    def test_what_is_none(self, text: str) -> None:
        with pytest.raises(ConfigError, match="a range of them such as `1:4`"):
            RunSettings.of(training_workers=text)

    def test_a_price_must_be_given(self) -> None:
        with pytest.raises(ConfigError, match="`worker-price` must be given with `--objective price`, got None"):
            RunSettings.of(objective="price")

    def test_the_whole_config(self) -> None:
        settings = RunSettings.of(
            training_workers="1:4", objective="price", worker_price=2.0, cpu_price=0.1, horizon_s=60.0,
            accumulation_env="ACC", max_workers=16, cpu_budget=3.0,
        )  # fmt: skip
        config = config_of(settings, {"ACC": "8"})
        assert config.sizes == (1, 2, 4)
        assert (config.micro_batches, config.max_feeders, config.cores, config.horizon_s) == (8, 16, 3.0, 60.0)
        assert config_of(settings, {}).micro_batches == 4
        for text in ("x", "0", ""):
            with pytest.raises(ConfigError, match="`ACC` must be the batches of a step of one training worker"):
                config_of(settings, {"ACC": text})


class TestProgram:
    @pytest.mark.parametrize(
        "program",
        [
            ["torchrun", "train.py"],
            ["/usr/bin/torchrun", "--nproc-per-node", "2", "train.py"],
            ["-m", "torch.distributed.run", "train.py"],
        ],
    )
    def test_torchrun_is_started_by_stoker(self, program: list[str]) -> None:
        with pytest.raises(ConfigError, match="`--training-workers` starts torchrun itself"):
            check_program(program, {})

    @pytest.mark.parametrize("program", [["-"], ["-c", "pass"], ["-cpass"]])
    def test_what_torchrun_cannot_run(self, program: list[str]) -> None:
        with pytest.raises(ConfigError, match="needs a script or `-m module`"):
            check_program(program, {})

    def test_inside_of_torchrun(self) -> None:
        with pytest.raises(ConfigError, match="must not be given inside of torchrun"):
            check_program(["train.py"], {"LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"})
        check_program(["-m", "train"], {})


class Acted:
    """Ranks without processes: each start is a stage of a play, which ends by itself or is ended."""

    def __init__(self, *stages: tuple[list[events.AnyEvent], int | None]) -> None:
        self.stages, self.started, self.told, self.status = list(stages), list[int](), list[Active](), 0
        self.running = False
        self.environs: list[Mapping[str, str]] = []

    def start(self, workers: int, environ: Mapping[str, str], program: Sequence[str]) -> None:
        assert not self.running
        records, status = self.stages.pop(0)
        self.started.append(workers)
        self.environs.append(environ)
        active = Active.from_environment(environ)
        self.told.append(active)
        folder = Path(active.run_dir)
        folder.mkdir(parents=True)
        for rank in range(workers):
            header = msgspec.structs.replace(HEADER, run_id=active.run_id, rank=rank, started_unix_s=time.time() - 11.0)
            name = "" if rank == 0 else f".rank{rank}"
            (folder / f"run{name}.json").write_bytes(msgspec.json.encode(header))
            own = [record for record in records if rank == 0 or not isinstance(record, events.CheckpointSaved)]
            lines = [msgspec.json.encode(record) + b"\n" for record in own]
            (folder / f"events{name}.jsonl").write_bytes(b"".join(lines))
        self.running, self.status = True, status
        self.ends_s = time.monotonic() + (0.3 if status else 0.1)

    def poll(self) -> int | None:
        if self.status is None or time.monotonic() < self.ends_s:
            return None
        self.running = False
        return self.status

    def interrupt(self, number: int) -> None:
        self.status = -number

    def end(self) -> None:
        self.running = False

    def close(self) -> None:
        self.end()


def started(resumed: bool) -> events.TrainingStarted:
    return events.TrainingStarted(t_s=1.0, resumed=resumed, gradient_bytes=100)


SAVED = events.CheckpointSaved(t_s=11.0, path="/c.pt", steps_since=1)
GAINING = [started(False), *course(wait_s=0.001), SAVED]
CONTINUED = [started(True), *course(wait_s=0.001), SAVED]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a job over stages; the ranks, and its status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "POLL_S", 0.005)
    monkeypatch.setattr(launcher, "_LOOK_S", 0.01)
    for name in [name for name in os.environ if name.startswith("STOKER_")]:
        monkeypatch.delenv(name)

    def run(*stages: tuple[list[events.AnyEvent], int | None], came: list[int] | None = None, **chosen: object):
        settings = RunSettings.of(**{"training_workers": "1:2", "cpu_budget": 8.0, **chosen})
        acted = Acted(*stages)
        job = launcher._Job(
            settings, config_of(settings, os.environ), ["train.py"], acted, tmp_path, [] if came is None else came
        )
        return acted, job.run()

    return run


def test_a_gain_is_taken_and_the_program_ends_as_it_does(play, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, status = play((GAINING, None), (CONTINUED, 0))
    assert (ranks.started, status) == ([1, 2], 0)
    one, two = ranks.told
    assert two.run_dir == f"{one.run_dir}-2"
    assert two.run_id == f"{one.run_id}-2"
    assert (one.settings.scale.cpu_budget, two.settings.scale.cpu_budget) == (8.0, 4.0)
    said = capsys.readouterr().err
    assert "2 training workers with 2 data workers promise" in said
    assert "repaid after" in said
    assert "the global batch becomes 16 samples, from 8" in said


def test_no_checkpoint_no_change(play) -> None:
    ranks, status = play(([started(False), *course(wait_s=0.001)], 3))
    assert (ranks.started, status) == ([1], 3)
    records = [event for event in read_run(ranks.told[0].run_dir).events if isinstance(event, events.SizesChosen)]
    assert [record.reason for record in records] == [
        "1 training worker with 1 data worker: their number changes only after a checkpoint"
    ]


def test_a_program_that_began_from_the_start_is_left_as_it_is(play, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ranks that show less than one did: they would be left, had they read the checkpoint."""
    worse = [started(False), *course(wait_s=0.001, step_s=0.5), SAVED]
    ranks, status = play((GAINING, None), (worse, 0))
    assert (ranks.started, status) == ([1, 2], 0)
    assert "read no checkpoint when it was started again" in capsys.readouterr().err


def test_a_change_that_proves_wrong_is_taken_back(play) -> None:
    worse = [started(True), *course(wait_s=0.001, step_s=0.5), SAVED]
    ranks, status = play((GAINING, None), (worse, None), (CONTINUED, 0))
    assert (ranks.started, status) == ([1, 2, 1], 0)


def test_ranks_that_fail_after_a_change_are_started_as_before(play, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, status = play((GAINING, None), ([], 1), (CONTINUED, 0))
    assert (ranks.started, status) == ([1, 2, 1], 0)
    assert "2 training workers failed at once: 1 training worker again, and no more changes" in capsys.readouterr().err


def test_ranks_that_fail_otherwise_end_the_program(play) -> None:
    """Those that a change has not proven wrong: they had come to a checkpoint."""
    ranks, status = play((GAINING, None), (CONTINUED, 1))
    assert (ranks.started, status) == ([1, 2], 1)


def test_ranks_that_fail_at_first_end_the_program(play) -> None:
    ranks, status = play(([], 1))
    assert (ranks.started, status) == ([1], 1)


def test_an_interrupt_is_passed_on_and_nothing_is_started_again(play) -> None:
    ranks, status = play((GAINING, None), came=[2])
    assert (ranks.started, status) == ([1], -2)


def test_the_global_batch_is_kept_by_accumulation(play, capsys: pytest.CaptureFixture[str]) -> None:
    ranks, _ = play((GAINING, None), (CONTINUED, 0), accumulation_env="ACC")
    assert [environ["ACC"] for environ in ranks.environs] == ["2", "1"]
    said = capsys.readouterr().err
    assert "`ACC` is not set: each step of the optimizer takes 2 batches from the start on" in said
    assert "the global batch stays 16 samples (accumulation 2 -> 1)" in said


def test_a_price_sets_a_limit(play, tmp_path: Path) -> None:
    ranks, _ = play((GAINING, 0), objective="price", worker_price=1.0, cpu_price=0.2, training_workers="1")
    assert ranks.started == [1]
    assert (tmp_path / "most-data-workers").read_text() == "1"


def test_an_error_of_our_own_leaves_the_program(play, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(launcher, "size_window", broken)
    ranks, status = play((GAINING, 0))
    assert (ranks.started, status) == ([1], 0)
    assert "planted" in capsys.readouterr().err
