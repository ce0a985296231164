"""`stoker profile [options] train.py`: where the time of a program's steps goes, and what to do about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.cli.command_line import CommandOption, check_program, split
from stoker.cli.errors import refuse
from stoker.core.errors import ConfigError, StokerError
from stoker.core.extras import require
from stoker.run.profiling.options import ProfileOptions
from stoker.run.settings import resolve

HELP = """\
usage: stoker profile [options] script.py [args...]
       stoker profile [options] -m module [args...]

Measures where the time of a program's training steps goes, compares it with what its operations are predicted to take,
and reports what limits it and what to do next. The program runs unmodified, its loaders as torch serves them, or as
`stoker run` would.

  --steps N             steps to measure after warming up (default: 50)
  --warmup N            steps to skip first (default: 5; 50 with --served, so that data workers settle)
  --samples N           of the steps, how many torch's profiler divides into parts (default: 3; 10 with several ranks)
  --then stop|continue  what happens after that: the program is ended at once, without its own clean-up, so that no
                        half-trained model is saved over a good one (default), or it continues to its end
  --served              have stoker serve the loaders, as `stoker run` does with the same settings
  --no-prediction       do not trace the program a second time to predict its step
  --price-per-hour P    what everything that the program runs on costs an hour, in any currency
  --json FILE           also write the profile to FILE; `-` prints it instead of the screen
  --run-dir DIR         folder for the records (default: a new one under stoker-runs)

Everything after the script or module belongs to the program. Under torchrun it nests both ways.
"""

_COMMAND = "stoker profile"
_OPTIONS = {
    "steps": CommandOption("a whole number"),
    "warmup": CommandOption("a whole number"),
    "samples": CommandOption("a whole number"),
    "then": CommandOption("`stop` or `continue`"),
    "served": CommandOption(),
    "no-prediction": CommandOption(),
    "price-per-hour": CommandOption("a positive number"),
    "json": CommandOption("a file, or `-`"),
    "run-dir": CommandOption("a directory"),
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
    options, price = options_of(chosen, _world_size(program)), _price(chosen)
    settings = resolve({name: chosen[name] for name in ("run-dir",) if name in chosen}).settings
    require("torch", extra="torch")
    # Imported here: what judges a profile takes seconds to load, and a wrong option shall not wait for it.
    from stoker.cli.profiled import Report, profile

    return profile(
        settings, options, program, Report(program, price, chosen.get("json"), predicts="no-prediction" not in chosen)
    )


def _world_size(program: list[str]) -> int:
    if os.environ.get("WORLD_SIZE", "").isdecimal():
        return int(os.environ["WORLD_SIZE"])
    launches = program[:2] == ["-m", "torch.distributed.run"] or Path(program[0]).name == "torchrun"
    return 2 if launches else 1
