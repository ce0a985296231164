"""What `stoker profile` does with a program once its command line is right: runs it, judges, reports."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from statistics import fmean

from stoker.cli.output import json_of
from stoker.core.saying import say
from stoker.perf.diagnosis.rules import Context, judge
from stoker.perf.features.child_process import InputState, input_now
from stoker.records.profile import PROFILE_NAME, Profile, RankRecord, write_record
from stoker.run.environment import ACTIVE_ENV
from stoker.run.hard_exit import end_like
from stoker.run.launch import command_of
from stoker.run.profiling import predicting
from stoker.run.profiling.launching import clear, read_ranks, run_program, wait_for
from stoker.run.profiling.merge_ranks import assemble
from stoker.run.profiling.options import ProfileOptions
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings
from stoker.ui.profile_text import render_profile
from stoker.ui.terminal import style_for


def profile(settings: RunSettings, options: ProfileOptions, program: list[str], report: Report) -> int:
    """Measures a program and reports; returns the exit status.

    Args:
        settings: of the run.
        options: of the measurement.
        program: a script or ``-m module``, with its arguments.
        report: that is made of it.
    """
    command, environ = command_of(settings.but(off=False), program, profile=options.to_json())
    environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own log lines
    active = Active.from_environment({ACTIVE_ENV: environ[ACTIVE_ENV]})
    folder, rank = Path(active.run_dir), _own_rank()
    clear(folder, rank)
    given = input_now()
    started_unix_s = time.time()
    ended = run_program(command, environ, folder, stop=options.then == "stop")
    speaks = not rank
    status = ended.status
    if speaks:
        records = read_ranks(folder)
        with _until_interrupted():
            report.make(
                folder, records, active, started_unix_s, given, stopped=ended.stopped, status=ended.status
            )  # fmt: skip
    if ended.process is not None:
        status = wait_for(ended.process)
    return end_like(status)


def _own_rank() -> int | None:
    """The rank as which a launcher started this process; None where it starts ranks itself, or there are none."""
    return int(os.environ["RANK"]) if os.environ.get("RANK", "").isdecimal() else None


@contextlib.contextmanager
def _until_interrupted() -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted: no report")


class Report:
    """Reports the result after the program has been measured.

    Args:
        program: with its arguments.
        price: of an hour of its hardware.
        output: file to write the profile to; ``-`` prints it instead of the report.
        predicts: whether to predict the step too.
    """

    def __init__(self, program: list[str], price: float | None, output: str | None, *, predicts: bool) -> None:
        self._program, self._price, self._output, self._predicts = program, price, output, predicts
        self._folder = Path()

    def make(
        self,
        folder: Path,
        records: list[RankRecord],
        active: Active,
        started_unix_s: float,
        given: InputState,
        *,
        stopped: bool,
        status: int,
    ) -> None:
        """Writes ``profile.json`` to the run folder and shows it."""
        self._folder = folder
        profile = assemble(
            records, run_id=active.run_id or self._folder.name, program=self._program, cwd=os.getcwd(),
            started_unix_s=started_unix_s,
        )  # fmt: skip
        if profile is None:
            say(_nothing_seen(records, status))
            return
        if stopped:
            say("the steps are measured, and the program was ended (`--then continue` lets it go on)")
        prophecy = self._predict(profile, given)
        profile.verdict = judge(profile, self._context(prophecy, records))
        self._write(profile)
        if self._output == "-":
            _print(json_of(profile))
        else:
            screen = render_profile(profile, style_for(sys.stderr, os.environ), folder=self._shown)
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(f"\n{screen}")
                sys.stderr.flush()

    @property
    def _shown(self) -> str:
        """The run folder as a person would type it from here."""
        here = Path.cwd()
        return str(self._folder.relative_to(here) if self._folder.is_relative_to(here) else self._folder)

    def _predict(self, profile: Profile, given: InputState) -> predicting.Prophecy:
        if not self._predicts:
            profile.unpredicted = "not asked for (`--no-prediction`)"
            return predicting.Prophecy(why_not=profile.unpredicted)
        say("tracing the program's operations, to predict its step (Ctrl-C: without)")
        log = self._folder / "tracing.log"
        features, why_not = predicting.trace(self._program, profile.device, profile.gpus, log, given)
        prophecy = predicting.prophesy(profile, features, why_not)
        predicting.add_prediction(profile, prophecy, self._folder)
        return prophecy

    def _context(self, prophecy: predicting.Prophecy, records: list[RankRecord]) -> Context:
        from stoker.cli.main import COMMANDS

        steps = [step for step in records[0].steps if not step.sampled] or records[0].steps
        return Context(
            price_per_hour=self._price,
            commands=frozenset(command.name for command in COMMANDS),
            features=prophecy.features,
            alternatives=prophecy.alternatives,
            run=self._shown,
            mean_wait_cpu_s=fmean(step.wait_cpu_s for step in steps) if steps else 0.0,
        )

    def _write(self, profile: Profile) -> None:
        targets = [self._folder / PROFILE_NAME]
        if self._output is not None and self._output != "-":
            targets.append(Path(self._output))
        for target in targets:
            try:
                write_record(target, profile)
            except OSError as error:
                say(f"`{target}` could not be written: {error.strerror}")


def _nothing_seen(records: list[RankRecord], status: int) -> str:
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}" if status else "ended"
    if not records:
        return (
            f"the program {ended} without a step that could be measured: it took no step of a torch optimizer and "
            "iterated over no DataLoader, or was killed before it could report"
        )
    return f"the program {ended} after less than two steps: nothing to measure; see `stoker profile --help`"


def _print(text: str) -> None:
    """Writes to standard output, whose reader may be gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
