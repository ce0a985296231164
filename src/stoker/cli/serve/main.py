"""`stoker serve COMMAND`: finds the command's module and passes it the remaining arguments."""

from __future__ import annotations

import importlib

from stoker.cli.groups import Subcommand, choose

COMMANDS = (
    Subcommand("run", "run", "answer requests with models, until SIGTERM drains it"),
    Subcommand("swap", "swap", "let a new version of a model take over, or go back if it fails"),
    Subcommand("plan", "plan", "which engine and how many, for a rate and a 99th percentile"),
)


def main(argv: list[str]) -> int:
    """Runs one command; returns the exit status."""
    command = choose("serve", COMMANDS, help_text(), argv)
    if isinstance(command, int):
        return command
    return importlib.import_module(f"stoker.cli.serve.{command.module}").main(argv[1:])


def help_text() -> str:
    """What `stoker serve --help` prints."""
    lines = [
        "usage: stoker serve COMMAND [arguments]",
        "",
        "Answers requests with models, by the Open Inference Protocol, version 2.",
        "",
        "commands:",
        *(f"  {command.name:<6}{command.help}" for command in COMMANDS),
        "",
        "`stoker serve COMMAND --help` says more. Start with: stoker serve run model.onnx --slo 20ms",
    ]
    return "\n".join(lines)
