"""One served process under ``stoker run``: installs serving, keeps the run folder, prints the report at the end."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.mishaps import line_of
from stoker.core.processes.forking import Owner
from stoker.core.saying import say
from stoker.records import events
from stoker.records.runlog import Run, RunLog, has_records, read_run
from stoker.run.environment import CACHE_ENV
from stoker.run.event_buffer import EventBuffer
from stoker.run.header import describe_run
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.loaders.steps import StepClock
from stoker.run.memory.asked import asked_of
from stoker.run.rank import find_place
from stoker.run.run_context import Active
from stoker.ui.live import LiveLine
from stoker.ui.report_text import render_text
from stoker.ui.summary import summarise
from stoker.ui.terminal import style_for

if TYPE_CHECKING:
    from stoker.run.exchanging.averaging import Averaging
    from stoker.run.exchanging.serving import Exchanging
    from stoker.run.fitting.rank_serving import RankFitting
    from stoker.run.fitting.serving import Fitting


class Session:
    """State of one process under ``stoker run``.

    Args:
        active: the run.
        clock: of the steps, where it is to record more than a run needs.
    """

    def __init__(self, active: Active, clock: StepClock | None = None) -> None:
        self._active = active
        # The rank may be unknown until the program makes its process group; a launcher's is known now.
        self._live = LiveLine.on(sys.stderr, os.environ, quiet=active.settings.report.quiet, rank=find_place().rank)
        self._log = RunLog(active.run_dir, self._header)
        self._memory = EventBuffer()
        self._served = self._recorded = False
        self._exchanging: Exchanging | Averaging | None = None
        self._fitting: Fitting | RankFitting | None = None
        self._owner = Owner()
        self.serving = Serving(
            active.settings,
            [self._on_event, self._memory.on_event, self._log.on_event, self._live.on_event],
            active.program,
            active.launcher,
            clock,
        )

    def start(self) -> None:
        """Serves from now on; the report comes when the interpreter exits, after the program's own handlers."""
        patch.install(self.serving)
        self.serving.clock.install()
        if self._active.sizes:
            # Imported here: few programs have their ranks started by stoker.
            from stoker.run.elastic.checkpoints import CheckpointWatch
            from stoker.run.elastic.told import RankSizes

            serving, sizes = self.serving, RankSizes.from_json(self._active.sizes)
            watch = CheckpointWatch(sizes, serving.emit, serving.now_s, serving.limit_workers)
            watch.install()
            serving.add_sink(watch.on_event)
        self._exchanging = self._make_exchanging()
        if self._exchanging is not None:
            self._exchanging.start()
        self._fitting = self._make_fitting()
        if self._fitting is not None:
            self._fitting.start()
        atexit.register(self.finish)
        if self._is_first_process and not self._active.settings.report.quiet:
            _tell_of_kill(Path(self._active.run_dir).parent, self._command(), self._active.program)

    def _make_exchanging(self) -> Exchanging | Averaging | None:
        """What serves the replicated modules of the program, if the user asked for it."""
        settings, quiet = self._active.settings.exchange, self._active.settings.report.quiet
        folder = Path(self._active.run_dir)
        # Imported here: few programs are distributed.
        if settings.comm == "average":
            from stoker.run.exchanging.averaging import Averaging

            return Averaging(self.serving, folder, quiet=quiet)
        if settings.comm == "auto":
            from stoker.run.exchanging.serving import Exchanging

            return Exchanging(settings, self.serving, folder, self._active.run_id)
        return None

    def _make_fitting(self) -> Fitting | RankFitting | None:
        """What makes the program fit, if there is a plan."""
        mode = self._active.settings.fitting.fit
        if mode == "off" or not self._active.fit_plan:
            return None
        plan, folder = self._active.fit_plan, Path(self._active.run_dir)
        # Imported here: few programs are to fit.
        from stoker.run.fitting.handing import FROM_FIRST, RANKED

        if plan == FROM_FIRST or plan.endswith(RANKED):
            from stoker.run.fitting.rank_serving import RankFitting

            return RankFitting(plan, mode, self.serving, folder)
        from stoker.run.fitting.serving import Fitting

        return Fitting(Path(plan), mode, self.serving, folder)

    @property
    def _rank(self) -> int:
        return self.serving.place.rank

    def _on_event(self, event: events.AnyEvent) -> None:
        if not self._served and self._rank:
            self._live.close()  # rank 0 speaks for all
        self._served = self._served or isinstance(event, events.LoaderOpened)
        self._recorded = self._recorded or isinstance(event, (events.ModelAveraged, events.Notice))

    def _header(self) -> events.RunHeader:
        active = self._active
        started_unix_s = time.time() - self.serving.now_s()
        run_id = active.run_id or Path(active.run_dir).name
        return describe_run(
            run_id, self._command(), active.settings, started_unix_s, self.serving.cores, self.serving.place
        )

    def _command(self) -> tuple[str, ...]:
        """The program as the user typed it (``-m module``), or the one that it started, as python knows that one."""
        program = self._active.program
        typed = bool(program) and tuple(sys.orig_argv[-len(program) :]) == program
        return program if typed else self._active.argv

    def finish(self) -> None:
        """Ends workers, closes the run folder, prints the report (rank 0, unless quiet) or that there is none.

        Of several processes of the program at one time, the one that has the run folder prints it.
        """
        if not self._owner.is_here:
            return
        if not self._active.settings.report.quiet:
            _explain_memory(self._active.program)
        try:
            self._finish()
        except Exception as error:  # must not change how the program ends
            say(line_of("end of a run", error, "its report is missing"))

    def _finish(self) -> None:
        active = self._active
        patch.remove()
        self.serving.close()
        # The other way round than they began: the fit's changes lie over those of the exchange.
        if self._fitting is not None:
            self._fitting.finish(self._rank)
        if self._exchanging is not None:
            self._exchanging.finish(self._rank, speaks=self._is_first_process)
        arena = _arena_line() if not self._rank else None
        if arena is not None:
            self.serving.emit(events.Notice(t_s=self.serving.now_s(), text=arena))
        error = getattr(sys, "last_type", None)
        outcome = error.__name__ if error is not None else "finished"
        if self._served:
            self._report_cache()
        if self._served or self._recorded:
            self.serving.emit(events.RunEnded(t_s=self.serving.now_s(), outcome=outcome))
        self._live.close()
        self._log.close()
        if self.is_to_report:
            self._report()
            _forget_unwritten()
        elif error is None and self._speaks_for_program() and not has_records(active.run_dir, active.run_id):
            _say_unused(active.program)

    @property
    def folder(self) -> Path | None:
        """Where the records of this process are; None where another process of its rank keeps them."""
        return None if self._log.silent else self._log.folder

    @property
    def is_to_report(self) -> bool:
        """Whether there is something to report, and a stream to print it to."""
        return self._served and self._rank == 0 and not self._active.settings.report.quiet and not self._log.silent

    def _report_cache(self) -> None:
        """Records the run's use of the data cache; without records, prints a line."""
        if CACHE_ENV in os.environ:
            # Imported here: most runs do not need it.
            from stoker.run.caching import report

            record = report.used(self.serving.now_s())
            if record is not None:
                self.serving.emit(record)
            if self.is_to_report:
                report.end()

    @property
    def _is_first_process(self) -> bool:
        """Whether this is the process that `stoker run` became, and rank 0."""
        return os.getpid() == self._active.pid and self._rank == 0

    def _speaks_for_program(self) -> bool:
        """Whether no other process of the program would print anything."""
        return self._is_first_process and not (self._served or self._active.settings.report.quiet)

    def _report(self) -> None:
        try:
            in_memory = Run(header=self._header(), events=self._memory.records)
            run = in_memory if self._log.failed else read_run(self._log.folder, self._rank)
            text = render_text(summarise(run), style_for(sys.stderr, os.environ))
            sys.stderr.write(f"{text}\n")
        except Exception as error:  # a full disk or a closed stream must not change how the program ends
            say(f"no report: {error}")


def _arena_line() -> str | None:
    """What came of the backend `stoker.arena`; None if the program did not use it."""
    # Nothing else imports it: a program without it pays nothing.
    if "stoker.train.arena.running" not in sys.modules:
        return None
    from stoker.train.arena.reporting import report

    found = report()
    return f"compiled steps: {found.line()}" if found.plans or found.left else None


def _explain_memory(program: Sequence[str]) -> None:
    """After the traceback of an error for lack of memory, says what held it."""
    try:
        found = asked_of(getattr(sys, "last_value", None))
        if found is not None:
            # Imported here: most programs end otherwise.
            from stoker.run.memory.ending import explain

            explain(*found, program)
    except Exception as failure:  # must not change how the program ends
        say(line_of("count of memory", failure, "what held it is not known"))


def _tell_of_kill(runs: Path, argv: Sequence[str], program: Sequence[str]) -> None:
    """Says if the kernel killed the program's last run, which could not say it."""
    try:
        # Imported here: it is of this moment alone.
        from stoker.run.memory.killed import words_of_last_run

        for line in words_of_last_run(runs, argv, program):
            say(line)
    except Exception as failure:  # must not change how the program runs
        say(line_of("look at the last run", failure, "how it ended is not known"))


def _say_unused(program: Sequence[str]) -> None:
    command = shlex.join(["stoker", "explain", *program])
    say(
        "no DataLoader was iterated over in this process, so there was nothing to serve; "
        f"`{command}` runs the program up to its first one, in any process, and says how it would be served"
    )
    _forget_unwritten()


def _forget_unwritten() -> None:
    """Drops output that a closed pipe refused: python would retry and exit with status 120."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        with contextlib.suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            os.close(null)
