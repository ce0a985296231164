"""`stoker perf COMMAND`: finds the command's module and passes it the remaining arguments."""

from __future__ import annotations

import importlib

from stoker.cli.groups import Subcommand, choose

COMMANDS = (
    Subcommand("calibrate", "calibrate", "measure this machine's CPU once, for predictions of steps on it"),
    Subcommand("features", "features", "what one training step computes, touches and keeps, found without a GPU"),
    Subcommand("fleet", "fleet", "where the time of many jobs goes, who gains from porting, what an upgrade buys"),
    Subcommand("scoreboard", "scoreboard", "how far predictions are from what others have published"),
)


def main(argv: list[str]) -> int:
    """Runs one command; returns the exit status."""
    command = choose("perf", COMMANDS, help_text(), argv)
    if isinstance(command, int):
        return command
    return importlib.import_module(f"stoker.cli.perf.{command.module}").main(argv[1:])


def help_text() -> str:
    """What `stoker perf --help` prints."""
    lines = [
        "usage: stoker perf COMMAND [arguments]",
        "",
        "Where a training step's time goes, on paper: predicted from what jobs compute, touch and send.",
        "",
        "commands:",
        *(f"  {command.name:<12}{command.help}" for command in COMMANDS),
        "",
        "`stoker perf COMMAND --help` says more.",
    ]
    return "\n".join(lines)
