"""`stoker cluster COMMAND`: finds the command's module and passes it the remaining arguments."""

from __future__ import annotations

import importlib

from stoker.cli.groups import Subcommand, choose

_COMMANDS = (Subcommand("host", "host", "lend this machine's processors to programs elsewhere"),)
_HELP = "\n".join(
    [
        "usage: stoker cluster COMMAND [arguments]",
        "",
        "Data workers on other machines.",
        "",
        "commands:",
        *(f"  {command.name:<9}{command.help}" for command in _COMMANDS),
        "",
        "`stoker cluster COMMAND --help` says more.",
    ]
)


def main(argv: list[str]) -> int:
    """Runs one command; returns its exit status."""
    command = choose("cluster", _COMMANDS, _HELP, argv)
    if isinstance(command, int):
        return command
    return importlib.import_module(f"stoker.cli.cluster.{command.module}").main(argv[1:])
