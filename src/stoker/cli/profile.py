"""`stoker profile [options] train.py`: where the time of a program's steps goes, and what to do about it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import msgspec

from stoker.cli.command_line import Option, check_program, split
from stoker.cli.errors import refuse
from stoker.cli.output import json_of
from stoker.core.config_sources import resolve
from stoker.core.errors import ConfigError, StokerError
from stoker.core.extras import require
from stoker.core.saying import say
from stoker.perf.verdict.judging import Context, judge
from stoker.perf.verdict.profile import PROFILE_NAME, Profile, RankRecord, write_record
from stoker.run.active import Active
from stoker.run.environment import ACTIVE_ENV
from stoker.run.launch import command_of
from stoker.run.profiling import predicting
from stoker.run.profiling.assembling import assemble
from stoker.run.profiling.launching import clear, end_like, read_ranks, run_program, wait_for
from stoker.run.profiling.options import ProfileOptions
from stoker.ui.profile_text import render_profile
from stoker.ui.terminal import style_for

HELP = """\
usage: stoker profile [options] script.py [args...]
       stoker profile [options] -m module [args...]

Measures where the time of a program's training steps goes, beside what is predicted from its operations, and says what
limits it and what to do next. The program runs unmodified, its loaders as torch serves them, or as `stoker run` would.

  --steps N             steps to measure after warming up (default: 50)
  --warmup N            steps to let go by first (default: 5; 50 with --served, so that data workers settle)
  --samples N           of the steps, how many torch's profiler divides into parts (default: 3; 10 with several ranks)
  --then stop|continue  what happens after that: the program is ended at once, without its own clean-up, so that no
                        half-trained model is saved over a good one (default), or it goes on to its end
  --served              have stoker serve the loaders, as `stoker run` does with the same settings
  --no-prediction       do not trace the program a second time to predict its step
  --price-per-hour P    what everything that the program runs on costs an hour, in any currency
  --json FILE           also write the profile to FILE; `-` prints it instead of the screen
  --run-dir DIR         folder for the records (default: a new one under stoker-runs)

Everything after the script or module belongs to the program. Under torchrun it nests both ways.
"""

_COMMAND = "stoker profile"
_OPTIONS = {
    "steps": Option("a whole number"),
    "warmup": Option("a whole number"),
    "samples": Option("a whole number"),
    "then": Option("`stop` or `continue`"),
    "served": Option(),
    "no-prediction": Option(),
    "price-per-hour": Option("a positive number"),
    "json": Option("a file, or `-`"),
    "run-dir": Option("a directory"),
}


def main(argv: list[str]) -> int:
    """Profiles; returns the program's exit status, 0 where it was stopped on purpose, 2 for a wrong command line."""
    try:
        chosen, program = split(argv, _COMMAND, _OPTIONS)
        if "help" in chosen:
            sys.stdout.write(HELP)
            return 0
        check_program(program, _COMMAND)
        return _profile(chosen, program)
    except StokerError as error:
        return refuse(error)


def options_of(chosen: dict[str, str], world_size: int) -> ProfileOptions:
    """The options as values.

    Raises:
        ConfigError: one breaks its rule.
    """
    then = chosen.get("then", "stop")
    if then not in ("stop", "continue"):
        raise ConfigError(f"`--then` must be `stop` or `continue`, got {then!r}")
    return ProfileOptions(
        steps=_number(chosen, "steps", 50),
        warmup=_number(chosen, "warmup", 50 if "served" in chosen else 5),
        samples=_number(chosen, "samples", 10 if world_size > 1 else 3),
        then="stop" if then == "stop" else "continue",
        served="served" in chosen,
    )


def _number(chosen: dict[str, str], name: str, default: int) -> int:
    if name not in chosen:
        return default
    try:
        return int(chosen[name])
    except ValueError:
        raise ConfigError(f"`--{name}` must be a whole number, got {chosen[name]!r}") from None


def _price(chosen: dict[str, str]) -> float | None:
    if "price-per-hour" not in chosen:
        return None
    try:
        price = float(chosen["price-per-hour"])
    except ValueError:
        price = float("nan")
    if not 0 < price < float("inf"):
        raise ConfigError(f"`--price-per-hour` must be a positive number, got {chosen['price-per-hour']!r}")
    return price


def _profile(chosen: dict[str, str], program: list[str]) -> int:
    require("torch", extra="torch")
    options, price = options_of(chosen, _world_size(program)), _price(chosen)
    settings = resolve({name: chosen[name] for name in ("run-dir",) if name in chosen}).settings
    command, environ = command_of(msgspec.structs.replace(settings, off=False), program, profile=options.to_json())
    environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own log lines
    active = Active.from_environment({ACTIVE_ENV: environ[ACTIVE_ENV]})
    folder, rank = Path(active.run_dir), _own_rank()
    clear(folder, rank)
    started_unix_s = time.time()
    ended = run_program(command, environ, folder, stop=options.then == "stop")
    speaks = not rank
    status = ended.status
    if speaks:
        records = read_ranks(folder)
        report = _Report(chosen, program, price, folder)
        with _until_interrupted():
            report.make(records, active, started_unix_s, stopped=ended.stopped, status=ended.status)
    if ended.process is not None:
        status = wait_for(ended.process)
    return end_like(status)


def _own_rank() -> int | None:
    """The rank as which a launcher started this process; None where it starts ranks itself, or there are none."""
    return int(os.environ["RANK"]) if os.environ.get("RANK", "").isdecimal() else None


def _world_size(program: list[str]) -> int:
    if os.environ.get("WORLD_SIZE", "").isdecimal():
        return int(os.environ["WORLD_SIZE"])
    launches = program[:2] == ["-m", "torch.distributed.run"] or Path(program[0]).name == "torchrun"
    return 2 if launches else 1


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted: no report")


class _Report:
    """What is said after the program has been measured."""

    def __init__(self, chosen: dict[str, str], program: list[str], price: float | None, folder: Path) -> None:
        self._chosen, self._program, self._price, self._folder = chosen, program, price, folder

    def make(
        self, records: list[RankRecord], active: Active, started_unix_s: float, *, stopped: bool, status: int
    ) -> None:
        """Writes ``profile.json`` and shows it."""
        profile = assemble(
            records, run_id=active.run_id or self._folder.name, program=self._program, cwd=os.getcwd(),
            started_unix_s=started_unix_s,
        )  # fmt: skip
        if profile is None:
            say(_nothing_seen(records, status))
            return
        if stopped:
            say("the steps are measured, and the program was ended (`--then continue` lets it go on)")
        prophecy = self._predict(profile)
        profile.verdict = judge(profile, self._context(prophecy, records))
        self._write(profile)
        if self._chosen.get("json") == "-":
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

    def _predict(self, profile: Profile) -> predicting.Prophecy:
        if "no-prediction" in self._chosen:
            profile.unpredicted = "not asked for (`--no-prediction`)"
            return predicting.Prophecy(why_not=profile.unpredicted)
        say("tracing the program's operations, to predict its step (Ctrl-C: without)")
        features, why_not = predicting.trace(self._program, profile.device, profile.gpus, self._folder / "tracing.log")
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
        if self._chosen.get("json", "-") != "-":
            targets.append(Path(self._chosen["json"]))
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
            "iterated over no DataLoader, or was killed before it could say"
        )
    return f"the program {ended} after less than two steps: nothing to measure; see `stoker profile --help`"


def _print(text: str) -> None:
    """To standard output, whose reader may have gone."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
