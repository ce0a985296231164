"""`stoker perf features`: what one training step of a program computes, touches and keeps."""

from __future__ import annotations

import argparse
from pathlib import Path

from stoker.cli.arguments import Parser, whole
from stoker.core.errors import ConfigError
from stoker.core.extras import require_in_child
from stoker.perf.equations import Architecture


def main(argv: list[str]) -> int:
    """Runs the program up to its second optimizer step, without a GPU; returns the exit status."""
    parser = Parser(
        prog="stoker perf features",
        usage="stoker perf features [options] script.py [args...]\n"
        "       stoker perf features [options] -m module [args...]",
        description="FLOPs, bytes and memory of one training step of an unmodified program, found without a GPU.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all operations to this file")
    parser.add_argument(
        "--hint", action="append", default=[], metavar="NAME=VALUE",
        help="a size that follows from values: elements or a fraction, by line or operation (train.py:31=0.15)",
    )  # fmt: skip
    parser.add_argument(
        "--csv", metavar="FILE", type=Path, help="add the step as a job to this table, for stoker perf fleet FILE"
    )
    parser.add_argument(
        "--gpus", metavar="N", type=whole(1), default=1, help="GPUs of the job in that table (default: 1)"
    )
    parser.add_argument("--architecture", metavar="NAME", help="how they share the work, as stoker perf fleet has it")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda", help="whose kernels (default: cuda)")
    parser.add_argument(
        "-m", dest="module", nargs=argparse.REMAINDER, help="a module and its arguments, as `python -m` takes them"
    )
    parser.add_argument("script", nargs="?", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    chosen = parser.parse_args(argv)
    program = ["-m", *chosen.module] if chosen.module else [chosen.script, *chosen.arguments]
    if program[0] is None:
        parser.error("`script.py` or `-m module` must be given, got nothing")
    architecture = _architecture(chosen)
    require_in_child("torch", extra="torch")
    # Imported here: help must not wait for them.
    from stoker.perf.features.fleet_row import append_row, fleet_row
    from stoker.perf.features.program import characterise_program
    from stoker.perf.features.records import parse_hints
    from stoker.perf.features.table import text_of

    try:
        hints = parse_hints(chosen.hint)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found = characterise_program(program, target=chosen.target, hints=hints)
    print(text_of(found), end="")
    if chosen.json is not None:
        _write(chosen.json, found.to_json())
        print(f"\n  all operations: {chosen.json}")
    if chosen.csv is not None:
        try:
            rows = append_row(chosen.csv, fleet_row(found, architecture, chosen.gpus))
        except ValueError as error:
            raise ConfigError(f"`--csv`: {error}") from None
        except OSError as error:
            raise ConfigError(f"`--csv` must name a file that can be written, got {chosen.csv}: {error}") from None
        print(f"\n  job {rows} of {chosen.csv}: {architecture.label}, {chosen.gpus} GPUs;", end=" ")
        print(f"next: stoker perf fleet {chosen.csv}")
    return 0


def _architecture(chosen: argparse.Namespace) -> Architecture:
    """The one named, or that of so many GPUs.

    Raises:
        ConfigError: there is none of that name, or it does not go with the number of GPUs.
    """
    from stoker.perf.features.fleet_row import architecture_for
    from stoker.perf.fleet.jobs import ARCHITECTURE_RULE, ONE_GPU_RULE, read_architecture

    if chosen.architecture is None:
        return architecture_for(chosen.gpus)
    number = read_architecture(chosen.architecture)
    if number < 0:
        raise ConfigError(f"`--architecture` must be {ARCHITECTURE_RULE}, got {chosen.architecture!r}")
    if number == Architecture.ONE_GPU and chosen.gpus != 1:
        raise ConfigError(f"`--gpus` must be {ONE_GPU_RULE}, got {chosen.gpus}")
    return Architecture(number)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"`--json` must name a file that can be written, got {path}: {error}") from None
