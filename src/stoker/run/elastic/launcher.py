"""`stoker run --training-workers`: runs a program's ranks, and restarts them with other sizes where that gains.

What a change would bring is decided purely (:mod:`stoker.scale.cluster.sizes`), at each complete checkpoint. This
module owns the attempts: starting, reading what the ranks record, ending, and what the user sees. A program that fails
ends as torchrun ends it; only one that fails right after a change, before its first checkpoint, is started as it was
before, because the change may be the cause. An error of stoker's own leaves the program with what it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from stoker.core import host
from stoker.core.errors import ConfigError
from stoker.core.mishaps import line_of
from stoker.core.saying import say
from stoker.core.units import format_count
from stoker.records.events import SizesChosen
from stoker.run.elastic.placed import PlacedRanks, may_be_placed
from stoker.run.elastic.prior import exposed_seconds
from stoker.run.elastic.ranks import Ranks, TorchrunRanks
from stoker.run.elastic.reading import RankRecords, size_window
from stoker.run.elastic.told import RankSizes
from stoker.run.hard_exit import end_like
from stoker.run.launch import command_of, served_environment
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings
from stoker.scale.cluster.sizes import SizeChange, SizeConfig, SizeDecision, SizeSearch, SizeWindow, on_global_batch

POLL_S = 0.1
_LOOK_S = 0.5
"""How often the ranks' records are read."""
_DECIDE_S = 5.0
"""How often data workers that have a price are limited again; training workers change after checkpoints alone."""
_TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "1", "-m")
"""What makes one sample of a rank again."""
_UNKNOWN_RESTART_S = 30.0
"""Taken for a restart while none was measured: python, torch and a model."""


def run_ranks(settings: RunSettings, program: Sequence[str]) -> int:
    """Runs the ranks of a program to its end.

    Args:
        settings: of the run, with a number of training workers.
        program: a script or ``-m module``, then its arguments.

    Returns:
        The exit status that torchrun gave, or 128 and a signal's number.

    Raises:
        ConfigError: The program can't be run so.
    """
    check_program(program, os.environ)
    config = config_of(settings, os.environ)
    with tempfile.TemporaryDirectory(prefix="stoker-ranks-") as folder, _signals() as came:
        ranks, config = _ranks_of(settings, config, Path(folder))
        try:
            status = _Job(settings, config, program, ranks, Path(folder), came).run()
        finally:
            ranks.close()
    return end_like(status)  # nothing of this process is left by now: a signal ends it at once


def _ranks_of(settings: RunSettings, config: SizeConfig, folder: Path) -> tuple[Ranks, SizeConfig]:
    """Where ranks run: on GPUs of the cluster that `--backend ray` joins, if it has any; else here.

    Raises:
        ConfigError: The cluster has fewer GPUs than the least number of ranks.
        ClusterStartError: It can't be joined.
    """
    if settings.remote.uses_ray and may_be_placed(os.environ):
        placed = PlacedRanks(folder, insecure=settings.remote.insecure)
        if placed.gpus >= config.least:
            return placed, dataclasses.replace(config, most=min(config.most, placed.gpus))
        placed.close()
        if placed.gpus:
            raise ConfigError(
                f"`--training-workers` must be at most the {placed.gpus} GPUs of the cluster, got {config.least}; "
                "`stoker cluster status` shows its nodes"
            )
    return TorchrunRanks(folder), config


def check_program(program: Sequence[str], environ: Mapping[str, str]) -> None:
    """Refuses what torchrun can't start, or has started.

    Raises:
        ConfigError: With what to do instead.
    """
    head = Path(program[0]).name
    if head == "torchrun" or tuple(program[:2]) in (
        ("-m", "torch.distributed.run"),
        ("-m", "torch.distributed.launch"),
    ):
        raise ConfigError(
            f"`--training-workers` starts torchrun itself, got {head!r} to run; "
            "give the training script: stoker run --training-workers 1:4 train.py"
        )
    if program[0] in ("-", "-c") or program[0].startswith("-c"):
        raise ConfigError(f"`--training-workers` needs a script or `-m module`, got {program[0]!r}")
    if "LOCAL_RANK" in environ and "TORCHELASTIC_RUN_ID" in environ:
        raise ConfigError(
            "`--training-workers` must not be given inside of torchrun, which has started this rank; "
            "run stoker itself, without torchrun around it"
        )


def config_of(settings: RunSettings, environ: Mapping[str, str]) -> SizeConfig:
    """What the search may choose.

    Raises:
        ConfigError: The accumulation divides by no number of training workers.
    """
    sizes = settings.sizes
    assert sizes.range is not None
    least, most = sizes.range
    micro_batches = 0
    if sizes.accumulation_env is not None:
        text = environ.get(sizes.accumulation_env, str(most))
        micro_batches = int(text) if text.isdigit() else 0
        if not any(micro_batches % n == 0 for n in range(least, most + 1)) or not micro_batches:
            raise ConfigError(
                f"`{sizes.accumulation_env}` must be the batches of a step of one training worker, divisible by a "
                f"number from {least} to {most}, got {text!r}; set it, or leave out `--accumulation-env`"
            )
    return SizeConfig(
        least=least,
        most=most,
        objective=sizes.objective,
        worker_price=sizes.worker_price or 1.0,
        cpu_price=sizes.cpu_price or 0.0,
        horizon_s=sizes.horizon_s,
        max_feeders=settings.scale.max_workers or 64 * most,
        cores=settings.scale.cpu_budget or host.cores(),
        micro_batches=micro_batches,
    )


@dataclass
class _Attempt:
    """The ranks that run now."""

    workers: int
    ranks: list[RankRecords]
    began_s: float
    changed: bool
    """Whether stoker has changed their number."""
    next_s: float = 0.0
    """When it is decided again without a checkpoint."""
    seen: int = 0
    """Checkpoints that were looked at."""
    told: list[str] = field(default_factory=list[str])
    most: int | None = None

    def restart_s(self) -> float:
        """What its start took, to the first step of an optimizer."""
        first = self.ranks[0]
        if first.header is None or first.started is None:
            return _UNKNOWN_RESTART_S
        return max(0.0, first.header.started_unix_s + first.started.t_s - self.began_s)


class _Job:
    """A program's ranks over all attempts."""

    def __init__(
        self,
        settings: RunSettings,
        config: SizeConfig,
        program: Sequence[str],
        ranks: Ranks,
        folder: Path,
        came: list[int],
    ) -> None:
        self._settings, self._config, self._program = settings, config, program
        self._ranks, self._came, self._limit = ranks, came, folder / "most-data-workers"
        self._search = SizeSearch(config)
        self._environ = command_of(settings, program)[1]
        self._base = None if settings.report.off else Active.from_environment(self._environ)
        self._frozen = ""
        """Why the sizes stay as they are for good, if they do."""
        self._is_broken = False
        """The search has failed by an error of stoker's own."""
        self._reason = ""
        self._attempts = 0
        self._before: int | None = None
        """The number of training workers before the change that is not proven yet."""

    def run(self) -> int:
        """Attempt after attempt; returns the status of the last, negative for a signal."""
        workers, feeders = self._config.sizes[0], -1
        self._reason = self._first_reason(workers)
        variable = self._settings.sizes.accumulation_env
        if variable is not None and variable not in os.environ:
            batches = self._config.micro_batches
            self._say(f"`{variable}` is not set: each step of the optimizer takes {batches} batches from the start on")
        while True:
            attempt = self._start(workers, feeders)
            found = self._watch(attempt)
            if isinstance(found, SizeDecision):
                self._announce(found, attempt)
                if (ended := self._ranks.poll()) is not None:
                    return ended  # the program has come to its end meanwhile
                self._ranks.end()
                self._before, self._reason = workers, found.reason
                self._search.moved()
                workers, feeders = found.sizes.workers, found.sizes.feeders_each
            elif found > 0 and not self._came and self._before is not None and not attempt.ranks[0].checkpoints:
                self._ranks.end()
                self._frozen = f"{format_count(workers, 'training worker')} failed at once"
                workers, feeders, self._before = self._before, -1, None
                self._reason = f"{self._frozen}: {format_count(workers, 'training worker')} again, and no more changes"
                self._say(self._reason)
            else:
                return found
            if self._came:  # between two attempts: there is nothing to pass it on to
                return -self._came[0]

    def _first_reason(self, workers: int) -> str:
        sizes = self._config.sizes
        if len(sizes) == 1:
            return f"{format_count(workers, 'training worker')}: no other number may be chosen"
        return f"{format_count(workers, 'training worker')} at first, of {', '.join(map(str, sizes))}"

    # One attempt

    def _start(self, workers: int, feeders_each: int) -> _Attempt:
        """Starts ranks; ``feeders_each`` of 0 has them make their batches themselves."""
        self._attempts += 1
        environ, records = dict(self._environ), list[RankRecords]()
        if self._settings.sizes.accumulation_env is not None:
            environ[self._settings.sizes.accumulation_env] = str(self._config.accumulation(workers))
        if self._base is not None:
            active = self._active(self._base, workers, feeders_each)
            environ = served_environment(environ, active)
            records = [RankRecords(Path(active.run_dir), rank, active.run_id) for rank in range(workers)]
        began_s = time.time()
        self._ranks.start(workers, environ, self._program)
        return _Attempt(workers, records, began_s, changed=self._before is not None)

    def _active(self, base: Active, workers: int, feeders_each: int) -> Active:
        scale = self._settings.scale
        chosen: dict[str, Any] = {}
        if scale.max_workers is not None:
            chosen["max_workers"] = max(1, scale.max_workers // workers)
        if scale.cpu_budget is not None:
            chosen["cpu_budget"] = scale.cpu_budget / workers
        if feeders_each == 0:
            chosen["workers"] = 0
        number = f"-{self._attempts}" if self._attempts > 1 else ""
        sizes = RankSizes(
            workers=workers, reason=self._reason, changes=self._search.changes, limit=str(self._limit)
        )  # fmt: skip
        return replace(
            base,
            settings=self._settings.but(**chosen),
            run_dir=base.run_dir + number,
            run_id=base.run_id + number,
            launcher=_TORCHRUN,
            sizes=sizes.to_json(),
        )

    def _watch(self, attempt: _Attempt) -> int | SizeDecision:
        """Waits for the end of the program, or for a decision that ends its ranks."""
        looked_s, passed_on = time.monotonic(), 0
        while (status := self._ranks.poll()) is None:
            while passed_on < len(self._came):
                self._ranks.interrupt(self._came[passed_on])
                passed_on += 1
            if not self._came and time.monotonic() - looked_s >= _LOOK_S:
                looked_s = time.monotonic()
                decision = self._looked_safely(attempt)
                if decision is not None and self._ranks.poll() is None and not self._came:
                    return decision
            time.sleep(POLL_S)
        return status

    def _looked_safely(self, attempt: _Attempt) -> SizeDecision | None:
        """A decision to restart; None for none, and after an error of stoker's own."""
        if self._base is None or self._is_broken:
            return None
        try:
            return self._look(attempt)
        except Exception as error:
            self._is_broken = True
            say(line_of("search of sizes", error, "the training workers stay as they are"))
            return None

    def _look(self, attempt: _Attempt) -> SizeDecision | None:
        for rank in attempt.ranks:
            rank.read()
        first = attempt.ranks[0]
        if first.started is not None and attempt.changed and not any(_has_resumed(rank) for rank in attempt.ranks):
            self._freeze(
                attempt, "the program read no checkpoint when it was started again, so it began from the start"
            )
            attempt.changed = False
        is_saved = first.checkpoints > attempt.seen
        attempt.seen = first.checkpoints
        if is_saved:
            self._before = None  # the change has proven itself
        elif time.monotonic() < attempt.next_s:
            return None
        attempt.next_s = time.monotonic() + _DECIDE_S
        window = size_window(attempt.ranks, may_change=self._settings.scale.workers is None)
        if window is None or self._frozen or first.started is None or first.header is None:
            return None
        self._search.observe(window)
        self._search.exposed = exposed_seconds(first.header.accelerator, first.started.gradient_bytes, window.step_s)
        decision = self._search.decide(self._change(attempt, window) if is_saved else None)
        if decision.most_feeders_each is not None:
            _replace(self._limit, str(max(1, decision.most_feeders_each)))
        if decision.restart:
            return decision
        self._tell(attempt, decision.reason, decision.most_feeders_each)
        return None

    def _change(self, attempt: _Attempt, window: SizeWindow) -> SizeChange | None:
        """What a change would cost just after a checkpoint."""
        first = attempt.ranks[0]
        if first.saved is None or first.header is None:
            return None
        # Steps since the checkpoint was noticed count too; one of the optimizer may take several batches.
        step_s = window.step_s * self._config.accumulation(attempt.workers)
        age_s = time.time() - first.header.started_unix_s - first.saved.t_s
        steps = first.saved.steps_since + max(0, int(age_s / max(step_s, 1e-3)))
        return SizeChange(restart_s=attempt.restart_s(), repeated_steps=steps, step_s=step_s)

    # What the user sees

    def _freeze(self, attempt: _Attempt, why: str) -> None:
        self._frozen = why
        reason = f"{why}: {format_count(attempt.workers, 'training worker')} from here on"
        self._say(reason)
        self._tell(attempt, reason)

    def _announce(self, decision: SizeDecision, attempt: _Attempt) -> None:
        """Before the change: why, and what becomes of the global batch."""
        first = attempt.ranks[0]
        # A save under a temporary name that was renamed since has no name that people know.
        known = first.saved is not None and os.path.exists(first.saved.path)
        where = f" ({first.saved.path})" if first.saved is not None and known else ""
        self._say(f"{decision.reason}; starting again from the checkpoint{where}")
        window = size_window(attempt.ranks, may_change=True)
        if decision.sizes.workers != attempt.workers and window is not None:
            self._say(on_global_batch(self._config, attempt.workers, decision.sizes.workers, window.batch_samples))

    def _tell(self, attempt: _Attempt, reason: str, most: int | None = None) -> None:
        """Records why the sizes are as they are, for the report, when the words are new."""
        words = reason.partition("(")[0]
        header = attempt.ranks[0].header
        if header is None or words in attempt.told[-1:]:
            return
        attempt.told.append(words)
        chosen = SizesChosen(
            t_s=0.0, workers=attempt.workers, reason=reason, changes=self._search.changes, most_feeders_each=most
        )
        attempt.ranks[0].tell(time.time() - header.started_unix_s, chosen)

    def _say(self, text: str) -> None:
        if not self._settings.report.quiet:
            say(text)


def _has_resumed(rank: RankRecords) -> bool:
    return rank.started is None or rank.started.resumed


def _replace(path: Path, text: str) -> None:
    """Writes a file so that a reader sees all of it."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


@contextlib.contextmanager
def _signals() -> Generator[list[int]]:
    """Notes signals that end programs, for the ranks; this process outlives them."""
    came: list[int] = []
    before: dict[int, Any] = {}
    handler: Callable[[int, Any], None] = lambda number, _: came.append(number)  # noqa: E731
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, handler)
    sys.stdout.flush()
    try:
        yield came
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
