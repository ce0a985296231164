"""The training process killed, interrupted and terminated at every stage: ends as plain python, leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.faults.data import Numbers
from tests.faults.harness import Trial, read
from tests.faults.serve import served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

STAGES = ["import", "iter 0", "step 0", "between 0", "validation 0", "step 1", "waiting", "exit"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def started(
    stack: ExitStack, folder: Path, stages: list[str], *arguments: str, served: bool = True
) -> dict[str, Trial]:
    """One trial for each stage, side by side, each waiting at its stage."""
    trials: dict[str, Trial] = {}
    for number, name in enumerate(stages):
        own = folder / f"{'served' if served else 'plain'}-{number}"
        own.mkdir()
        trials[name] = stack.enter_context(Trial(own, "stages.py", name, *arguments, served=served))
    for name, trial in trials.items():
        trial.expect("total" if name == "waiting" else f"at {name}")
        if name == "waiting" and served:
            await_that("workers at work", lambda trial=trial: len(trial.workers()) > 2)
    return trials


@pytest.mark.slow("programs are killed at every stage")
def test_killed(stack: ExitStack, tmp_path: Path) -> None:
    trials = started(stack, tmp_path, STAGES)
    for name, trial in trials.items():
        if name not in ("import", "exit"):
            assert trial.workers(), name
        trial.check_nothing_named()
        os.kill(trial.pid, signal.SIGKILL)
        assert trial.finish() == -signal.SIGKILL
        trial.check_nothing_left()
        assert "Traceback" not in trial.errors(), name


@pytest.mark.slow("programs are killed at every stage")
def test_killed_with_its_template(stack: ExitStack, tmp_path: Path) -> None:
    for trial in started(stack, tmp_path, ["step 0", "between 0"]).values():
        for pid in [*trial.templates(), trial.pid]:
            os.kill(pid, signal.SIGKILL)
        trial.finish()
        trial.check_nothing_left()


@pytest.mark.slow("programs are interrupted at every stage")
def test_interrupted(stack: ExitStack, tmp_path: Path) -> None:
    """Ctrl-C in a terminal: SIGINT to every process of the foreground group."""
    served = started(stack, tmp_path, STAGES)
    plain = started(stack, tmp_path, ["import", "iter 0", "step 0", "exit"], served=False)
    for trial in [*served.values(), *plain.values()]:
        os.killpg(trial.pid, signal.SIGINT)
    for name, trial in served.items():
        status = trial.finish()
        trial.check_nothing_left()
        like = plain.get(name, plain["step 0"])
        assert status == like.finish(), name
        assert "stoker_worker" not in trial.errors()
        assert trial.errors().count("Traceback") == like.errors().count("Traceback"), (name, trial.errors())
        if name in plain:
            assert users_frames(trial.errors()) == users_frames(like.errors())
        else:
            assert "KeyboardInterrupt" in trial.errors()


def users_frames(traceback: str) -> list[str]:
    """The program's own frames of a traceback, and the last line."""
    frames = re.findall(r'File "[^"]*stages\.py", line \d+, in \S+', traceback)
    # It may be hit while it says that it is there (one line) or while it waits (the next).
    told = [re.sub(r"line \d+, in stage", "in stage", frame) for frame in frames]
    return [*told, traceback.strip().splitlines()[-1]]


def test_interrupted_while_a_batch_is_waited_for_and_caught(stack: ExitStack, tmp_path: Path) -> None:
    trial = stack.enter_context(Trial(tmp_path, "catching.py"))
    for _ in range(3):
        trial.expect("waiting")
        await_that("workers at work", lambda: len(trial.workers()) >= 2)
        os.killpg(trial.pid, signal.SIGINT)
        trial.expect("caught")
    assert trial.finish() == 0
    trial.check_nothing_left()
    assert trial.errors() == ""


def test_an_interrupt_is_not_swallowed(tmp_path: Path) -> None:
    """At a fork, and while workers are ended with their iterator or loader, python itself swallows it."""
    with Trial(tmp_path, "interrupted.py") as trial:
        assert trial.finish() == 0, trial.errors()
        assert trial.lines == ["fork caught", "iterator caught", "loader caught", "batches 16"]
        assert "ignored" not in trial.errors()


def test_terminated(stack: ExitStack, tmp_path: Path) -> None:
    """Without a handler SIGTERM ends the program as plain python; nothing is left."""
    for trial in started(stack, tmp_path, ["step 0", "between 0"]).values():
        os.kill(trial.pid, signal.SIGTERM)
        assert trial.finish() == -signal.SIGTERM
        trial.check_nothing_left()


def test_terminated_with_a_handler(stack: ExitStack, tmp_path: Path) -> None:
    """A cluster sends SIGTERM to the whole group; the program's handler runs once, in the training process."""
    for trial in started(stack, tmp_path, ["step 0", "waiting"], "handler").values():
        os.killpg(trial.pid, signal.SIGTERM)
        assert trial.finish() == 3
        trial.check_nothing_left()
        assert [line for line in trial.lines if line.startswith("checkpoint")] == [f"checkpoint {trial.pid}"]
        assert "Traceback" not in trial.errors()


def test_sample_in_progress_is_finished(tmp_path: Path) -> None:
    """A dataset that writes files is not cut off in the middle of one when the loop is left early."""
    began, ended = tmp_path / "began", tmp_path / "ended"

    class Caching(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 30:
                began.write_text("")
                await_that("told to go on", lambda: os.read(gate, 1))
                time.sleep(0.05)  # by now the loop has been left
                ended.write_text("")
            return super().__getitem__(index)

    gate, told = os.pipe()
    with served(workers=2):
        for step, _ in enumerate(DataLoader(Caching(64), batch_size=4, num_workers=2)):
            if step == 4:
                await_that("a sample is in progress", began.exists)
                os.write(told, b"x")
                break
    os.close(gate)
    os.close(told)
    assert ended.exists()


def test_hangup_of_the_terminal(stack: ExitStack, tmp_path: Path) -> None:
    (trial,) = started(stack, tmp_path, ["step 1"]).values()
    os.killpg(trial.pid, signal.SIGHUP)
    assert trial.finish() == -signal.SIGHUP
    trial.check_nothing_left()


def test_stopped_in_the_terminal_and_continued(stack: ExitStack, tmp_path: Path) -> None:
    """Ctrl-Z and fg: every process of the group stops and goes on; no worker is taken for a hanging one.

    SIGSTOP stands for the terminal's SIGTSTP, which the kernel ignores in a session without a terminal.
    """
    (trial,) = started(stack, tmp_path, ["step 0"]).values()
    os.killpg(trial.pid, signal.SIGSTOP)
    await_that("all stopped", lambda: all(b"\nState:\tT" in read(f"/proc/{p}/status") for p in trial.processes()))
    os.killpg(trial.pid, signal.SIGCONT)
    trial.tell()
    assert trial.finish() == 0
    assert "total" in trial.lines[-1]
    assert trial.events("worker_lost") == []
    trial.check_nothing_left()


@pytest.mark.slow("torch's own workers have their turn late")
def test_ended_while_torchs_own_workers_have_their_turn(stack: ExitStack, tmp_path: Path) -> None:
    """Both sides have workers then: a signal leaves none, and what torch's need after a kill is torch's own delay."""
    trials: list[Trial] = []
    for name in ("interrupted", "killed", "told"):
        (tmp_path / name).mkdir()
        trials.append(stack.enter_context(Trial(tmp_path / name, "compared.py", options=["--versus-plain", "120"])))
    for trial in trials:
        trial.expect("at torch's turn")
        assert len(trial.processes()) > len(trial.workers()) + len(trial.templates()) + 1, trial.names()
    interrupted, killed, told = trials
    os.killpg(interrupted.pid, signal.SIGINT)
    os.kill(killed.pid, signal.SIGKILL)
    told.tell()
    assert interrupted.finish() == -signal.SIGINT
    interrupted.check_nothing_left()
    assert interrupted.errors().strip().endswith("KeyboardInterrupt")
    assert killed.finish() == -signal.SIGKILL
    await_that(f"no process left; {killed.names()}", lambda: not killed.processes(), 10.0)
    assert told.finish() == 0
    told.check_nothing_left()
    assert len(told.events("pair_compared")) == 5
