"""The ``stoker`` command: finds the subcommand's module and hands it the remaining arguments untouched.

Each module has ``main(argv: list[str]) -> int``, parses its own arguments, and is imported only when it is chosen, so
that help is instant and `stoker run` puts nothing into a program's process that the program did not ask for.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from stoker._version import __version__
from stoker.cli.arguments import Parser
from stoker.cli.errors import refuse
from stoker.core.errors import ConfigError, StokerError


@dataclass(frozen=True)
class Command:
    """One subcommand: its name, module and help text."""

    name: str
    module: str
    help: str
    runs_program: bool = False
    """The user's program may run inside: its exceptions, signals and broken pipes are its own business."""


COMMANDS = (
    Command("demo", "stoker.cli.demo.main", "show what stoker does, on a program that comes with it"),
    Command("run", "stoker.cli.run", "run a PyTorch program with stoker's data workers", runs_program=True),
    Command("profile", "stoker.cli.profile", "show where a step's time goes, and the remedy", runs_program=True),
    Command("explain", "stoker.cli.explain", "show how each loader is served, and why", runs_program=True),
    Command("report", "stoker.cli.report", "show where the time of a run went"),
    Command("graph", "stoker.cli.graph", "show what was moved out of a run's steps, as text or as a picture"),
    Command("cache", "stoker.cli.cache.main", "fill, inspect and serve the data cache"),
    Command("cluster", "stoker.cli.cluster.main", "start, inspect and end clusters whose CPUs feed programs"),
    Command("submit", "stoker.cli.jobs.submit", "run a program on GPUs of a cluster, once all of them are free"),
    Command("queue", "stoker.cli.jobs.queue", "show the jobs of a cluster, and why they wait"),
    Command("cancel", "stoker.cli.jobs.cancel", "take a job from the queue of a cluster, or end it"),
    Command("logs", "stoker.cli.jobs.logs", "show what a job of a cluster printed"),
    Command("plan", "stoker.cli.plan", "recommend GPUs, their number and a strategy for a budget and a deadline"),
    Command("memory", "stoker.cli.memory.main", "predict what holds a program's memory, and what lowers its peak"),
    Command(
        "exchange", "stoker.cli.exchange.main", "plan how ranks exchange a program's gradients, or show how a run did"
    ),
    Command("perf", "stoker.cli.perf.main", "predict where time goes: of a program's step, of a fleet of jobs"),
    Command("deploy", "stoker.cli.deploy.main", "carry a trained model to whole numbers, and to what runs them"),
    Command(
        "serve", "stoker.cli.serve.main", "answer requests with a model, change its version, plan how many engines"
    ),
    Command("sim", "stoker.cli.sim", "simulate a cluster's jobs, with and without the allocator of CPUs"),
    Command("config", "stoker.cli.config_show", "show the settings and where each comes from"),
    Command("doctor", "stoker.cli.doctor.main", "check this machine: memory, descriptors, cores, torch"),
)


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit status.

    Args:
        argv: Arguments without the program's name; those of this process by default.
    """
    arguments = sys.argv[1:] if argv is None else argv
    command = next((command for command in COMMANDS if arguments[:1] == [command.name]), None)
    if command is None:
        return _guarded(_without_command, arguments)
    if command.runs_program:
        return _entry(command)(arguments[1:])
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and stdout.errors == "strict":
        stdout.reconfigure(errors="backslashreplace")  # names of files may be no text; as on standard error
    return _guarded(lambda rest: _entry(command)(rest), arguments[1:])


def _entry(command: Command) -> Callable[[list[str]], int]:
    return importlib.import_module(command.module).main


def _guarded(entry: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Runs an interactive command: errors are one line, a closed pipe is not an error."""
    try:
        status = entry(arguments)
        sys.stdout.flush()
    except StokerError as error:
        return refuse(error)
    except BrokenPipeError:
        # `stoker report | head` is done when head is; the interpreter must not flush into the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        return 128 + 2
    return status


def _without_command(arguments: list[str]) -> int:
    """Help, version, or the error for a word that is no command."""
    if arguments and not arguments[0].startswith("-"):
        return refuse(ConfigError(f"`{arguments[0]}` is not a command; {_suggestion(arguments[0])}"))
    parser = Parser(
        prog="stoker",
        usage="stoker COMMAND [arguments]",
        description="Keeps accelerators busy: elastic data workers for unmodified PyTorch programs.",
        epilog="\n".join(["commands:", *(f"  {command.name:<9}{command.help}" for command in COMMANDS)])
        + "\n\n`stoker COMMAND --help` says more. Start with: stoker run train.py",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stoker {__version__}")
    parser.parse_args(arguments)
    parser.print_help(sys.stderr)
    return 2


def _suggestion(word: str) -> str:
    names = [command.name for command in COMMANDS]
    if word.endswith(".py"):
        return f"to run a program: stoker run {word}"
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known are {', '.join(names)}"


if __name__ == "__main__":
    sys.exit(main())
