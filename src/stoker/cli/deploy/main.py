"""`stoker deploy COMMAND`: finds the command's module and passes it the remaining arguments."""

from __future__ import annotations

import importlib

from stoker.cli.groups import Subcommand, choose
from stoker.core.processes.interrupts import cleaned_up

COMMANDS = (
    Subcommand("quantise", "quantise", "a trained model as a package of whole numbers, compared with float"),
    Subcommand("build", "build", "all of it: a trained model quantised, searched, written, verified, placed"),
    Subcommand("search", "search", "the design of a package that fits an FPGA and keeps limits of rate and latency"),
    Subcommand("rtl", "rtl", "a package as a design in SystemVerilog: dataflow, or a program of an engine"),
    Subcommand("verify", "verify", "a design, simulated, against the law on every output"),
    Subcommand("fit", "fit", "a design on an FPGA: resources, clock, latency, as open tools estimate them"),
    Subcommand(
        "calibrate", "calibrate", "the model of resources and clocks that searches use, fitted to synthesised units"
    ),
)


def main(argv: list[str]) -> int:
    """Runs one command; returns the exit status."""
    command = choose("deploy", COMMANDS, help_text(), argv)
    if isinstance(command, int):
        return command
    with cleaned_up():
        return importlib.import_module(f"stoker.cli.deploy.{command.module}").main(argv[1:])


def help_text() -> str:
    """What `stoker deploy --help` prints."""
    lines = [
        "usage: stoker deploy COMMAND [arguments]",
        "",
        "From a trained model to what runs it.",
        "",
        "commands:",
        *(f"  {command.name:<12}{command.help}" for command in COMMANDS),
        "",
        "`stoker deploy COMMAND --help` says more.",
    ]
    return "\n".join(lines)
