"""`stoker submit --gpus N -- train.py args`: a job for the cluster's queue."""

from __future__ import annotations

import getpass
import math
import os
import secrets
import sys
import time
from pathlib import Path

from stoker.backends.ray.allocator.launch import SubmittedProgram
from stoker.cli.arguments import INSECURE
from stoker.cli.command_line import CommandOption, check_program, split
from stoker.cli.jobs.joined import joined
from stoker.core.errors import ConfigError
from stoker.core.units import parse_seconds
from stoker.scale.cluster.gangs import DISCIPLINES, Discipline
from stoker.scale.cluster.submissions import Submission

_COMMAND = "stoker submit"
_POLICIES = ", ".join(DISCIPLINES)
_OPTIONS = {
    "gpus": (CommandOption("a whole number of at least 1"), "N", "GPUs, all at once (default: 1)"),
    "cpus": (
        CommandOption("a number of CPUs"), "N",
        "CPUs of the training workers, all together (default: one a GPU); data workers get theirs from the pool",
    ),
    "user": (CommandOption("a name"), "NAME", "whose job it is (default: you)"),
    "priority": (CommandOption("a whole number"), "N", "its class: a higher one goes first (default: 0)"),
    "resumable": (
        CommandOption(), "", "it writes a checkpoint on SIGTERM and continues from it: it may be preempted"
    ),
    "duration": (CommandOption("a time such as 2h"), "TIME", "what it takes at full speed, if you know: for srtf"),
    "policy": (
        CommandOption(f"one of {_POLICIES}"), "P", f"order of the queue: {_POLICIES}; of an empty queue"
    ),
    "insecure": (CommandOption(), "", INSECURE),
}  # fmt: skip


def main(argv: list[str]) -> int:
    """Adds a job to the queue of the cluster.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: an option is invalid, there is no cluster, or the job can never run on it.
        ClusterStartError: the allocator does not start.
    """
    chosen, words = split(argv, _COMMAND, {name: option for name, (option, _, _) in _OPTIONS.items()})
    if "help" in chosen:
        print(help_text())
        return 0
    asked = _asked(chosen, words)
    program = _program(words, asked)
    policy = _policy(chosen["policy"]) if "policy" in chosen else None
    jobs = joined(insecure="insecure" in chosen)
    number = jobs.submit(asked, program, policy)
    found = jobs.record(number).job
    print(f"job {number}: {found.state}" + (f" ({found.reason})" if found.reason else ""))
    print(f"its output:  stoker logs {number} -f")
    return 0


def help_text() -> str:
    """Returns what `stoker submit --help` prints."""
    lines = [
        f"usage: {_COMMAND} [options] -- script.py [args…]",
        f"       {_COMMAND} [options] -- -m module [args…]",
        "",
        "Runs a program under `stoker run` on GPUs of the cluster once all of them are free, with this folder,",
        "environment and Python; under torchrun where it takes more than one GPU. Options of `stoker run` go before",
        "the script.",
        "",
    ]
    for name, (_, form, text) in _OPTIONS.items():
        lines.append(f"  {f'--{name} {form}'.strip():<18} {text}")
    return "\n".join(lines)


def _program(words: list[str], asked: Submission) -> SubmittedProgram:
    check_program(words, _COMMAND)
    first = words[0]
    if Path(first).name.startswith("python"):
        raise ConfigError(f"`script.py` or `-m module` must follow `--`, got `{first}`: this Python runs it")
    if not first.startswith("-") and not Path(first).is_file():
        raise ConfigError(f"`{first}` must be a script in this folder, got none; see `{_COMMAND} --help`")
    folder = os.getcwd()
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return SubmittedProgram(
        python=sys.executable, words=tuple(words), folder=folder, environ=dict(os.environ),
        log_folder=f"{folder}/stoker-jobs/{stamp}", user=asked.user, priority=asked.priority,
    )  # fmt: skip


def _asked(chosen: dict[str, str], words: list[str]) -> Submission:
    gpus = _whole("gpus", chosen.get("gpus", "1"), 1)
    return Submission(
        gpus=gpus,
        cpus=_amount("cpus", chosen.get("cpus", str(gpus))),
        user=chosen.get("user") or getpass.getuser(),
        priority=_whole("priority", chosen.get("priority", "0"), -1_000_000),
        resumable="resumable" in chosen,
        duration_s=_seconds(chosen["duration"]) if "duration" in chosen else None,
        command=tuple(words),
    )


def _policy(text: str) -> Discipline:
    for name in DISCIPLINES:
        if name == text:
            return name
    raise ConfigError(f"`--policy` must be one of {_POLICIES}, got {text!r}")


def _whole(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise ConfigError(f"`--{name}` must be a whole number of at least {least}, got {text!r}")
    return value


def _amount(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise ConfigError(f"`--{name}` must be a number of at least 0, got {text!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = parse_seconds(text)
    except ValueError:
        value = 0.0
    if value <= 0.0:
        raise ConfigError(f"`--duration` must be a positive time such as 2h, got {text!r}")
    return value
