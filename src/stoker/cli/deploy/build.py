"""`stoker deploy build`: from a trained model to a placed design, by the other commands one after another."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.cli.arguments import Parser, as_typed, split_program
from stoker.cli.deploy.search import add_limits, wanted_of
from stoker.core.errors import ConfigError
from stoker.deploy.search.report import picked_design
from stoker.deploy.search.searching import check_clock
from stoker.deploy.tools.devices import fpga

_EPILOG = """\
Each step is a command that can be run again alone; it is printed before what it says. DIR gets the package, the report
of the search (search.json) and the design (rtl). The first step that fails ends it, with its status. What follows --
are options of `stoker deploy quantise`.
examples:
  stoker deploy build model.py:make --data calib.py:loader --out digits --device ecp5-45k --rate 10k
  stoker deploy build model.py:make --data calib.py:loader --out digits --rate 10k --loss 0.5% --mixed
  stoker deploy build model.py:make --data calib.py:loader --test test.py:loader --out digits -- --weights 4"""


def main(argv: list[str]) -> int:
    """Runs all steps; returns the exit status of the last that ran.

    Raises:
        StokerError: as of the step that fails.
    """
    ours, theirs = split_program(argv)
    arguments = _parser().parse_args(ours)
    if arguments.mixed and arguments.loss is None:
        raise ConfigError("`--mixed` must go with `--loss`, within which widths become narrower; add `--loss 0.5%`")
    if arguments.mixed and arguments.loss in (0, 1):
        raise ConfigError(
            f"`--loss` must be between 0 and 100 % with `--mixed`, got {_digits(100 * arguments.loss)}%; "
            "write `--loss 0.5%`"
        )
    try:
        check_clock(fpga(arguments.device), wanted_of(arguments), arguments.clock)
    except ValueError as error:
        raise as_typed(error, ("rate", "latency", "clock")) from None
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"`--out` must be a folder that can be made: {error.strerror}") from error
    for words in _steps(arguments, theirs):
        sys.stdout.write(f"$ {shlex.join(['stoker', 'deploy', *words])}\n\n")
        sys.stdout.flush()
        status: int = importlib.import_module(f"stoker.cli.deploy.{words[0]}").main(words[1:])
        if status:
            return status
        sys.stdout.write("\n")
    return 0


def _steps(arguments: argparse.Namespace, quantising: list[str]) -> Iterator[list[str]]:
    """Commands with their arguments; which package is built is known when the search has ended."""
    out: Path = arguments.out
    package, found, design = str(out / "package"), str(out / "search.json"), str(out / "rtl")
    mixed = ["--loss", f"{_digits(100 * arguments.loss)}%", "--steps", str(out / "widths")] if arguments.mixed else []
    yield ["quantise", arguments.model, "--data", arguments.data, "--out", package, *mixed, *quantising]
    packages = [package]
    if arguments.mixed:
        packages = [str(each) for each in sorted((out / "widths").iterdir())]
    yield ["search", *packages, *_limits(arguments), "--out", found]
    pick = picked_design(Path(found))
    package = pick.package
    yield ["rtl", package, "--folding", found, "--out", design]
    test = ["--data", arguments.test] if arguments.test else []
    counting = ["--activity"] if arguments.activity else []
    yield ["verify", package, "--design", design, *test, *counting]
    yield ["fit", design, "--device", arguments.device]


def _limits(arguments: argparse.Namespace) -> list[str]:
    """The options of a search, as they are typed."""
    found = ["--device", arguments.device]
    if arguments.structure != "any":
        found += ["--structure", arguments.structure]
    if arguments.clock is not None:
        found += ["--clock", f"{_digits(arguments.clock)}MHz"]
    for name in ("weights", "requantisers", "tables"):
        if (chosen := getattr(arguments, name)) != "any":
            found += [f"--{name}", chosen]
    if arguments.latency is not None:
        found += ["--latency", f"{_digits(1e6 * arguments.latency)}us"]
    if arguments.rate is not None:
        found += ["--rate", _digits(arguments.rate)]
    if arguments.loss is not None:
        found += ["--loss", f"{_digits(100 * arguments.loss)}%"]
    return found + (["--model", str(arguments.model_file)] if arguments.model_file else [])


def _digits(value: float) -> str:
    """A number without an exponent."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy build",
        usage="stoker deploy build MODEL --data LOADER --out DIR [options] [-- options of quantise]",
        description="Quantises a model, searches a design, writes it, verifies every output, and places it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_limits(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="LOADER", help="calibration batches, as of `stoker deploy quantise`")
    add("--test", metavar="LOADER", help="batches to verify with (default: random samples)")
    add(
        "--mixed", action="store_true",
        help="widths by layer as narrow as `--loss` allows, by measurement; each step on the way is searched, too",
    )  # fmt: skip
    add("--activity", action="store_true", help="count changes of bits while it is verified, as `verify --activity`")
    add("--out", required=True, type=Path, metavar="DIR", help="folder for everything; made if it is not there")
    add("model", metavar="MODEL", help="file.py:function or module:function that returns the model")
    return parser
