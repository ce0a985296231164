"""`stoker cluster COMMAND`: finds the command's module and passes it the remaining arguments."""

from __future__ import annotations

import importlib

from stoker.cli.groups import Subcommand, choose

COMMANDS = (
    Subcommand("up", "up", "start a Ray cluster on this machine"),
    Subcommand("status", "status", "show nodes, and the CPUs that jobs hold there"),
    Subcommand("set", "controls", "change by what its CPUs are divided among jobs"),
    Subcommand("down", "down", "end the Ray cluster that was started here"),
    Subcommand("doctor", "doctor", "look what keeps a Ray cluster from being used"),
    Subcommand("host", "host", "lend this machine's processors to programs elsewhere, without Ray"),
    Subcommand("manifests", "manifests", "write a cluster's files for Kubernetes"),
)
_HELP = "\n".join(
    [
        "usage: stoker cluster COMMAND [arguments]",
        "",
        "Data workers on other machines.",
        "",
        "commands:",
        *(f"  {command.name:<11}{command.help}" for command in COMMANDS),
        "",
        "`stoker cluster COMMAND --help` says more.",
    ]
)


def main(argv: list[str]) -> int:
    """Runs one command; returns its exit status."""
    command = choose("cluster", COMMANDS, _HELP, argv)
    if isinstance(command, int):
        return command
    return importlib.import_module(f"stoker.cli.cluster.{command.module}").main(argv[1:])
