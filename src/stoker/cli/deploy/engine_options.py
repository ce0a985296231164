"""Options of `stoker deploy` for engines: their sizes, and a package written as a program of one."""

from __future__ import annotations

import argparse
import os
import sys

from stoker.cli.arguments import Parser, as_typed, whole
from stoker.cli.output import print_json
from stoker.core.errors import ConfigError
from stoker.deploy.hardware.engines import write_model
from stoker.deploy.package.folder import IntegerPackage
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.ui.deploy.engine_text import render_engine
from stoker.ui.terminal import style_for

_MEMORIES = {
    "data": "data_words", "weights": "weight_words", "tables": "table_words", "scales": "scale_words",
    "instructions": "instructions",
}  # fmt: skip

_DATAFLOW = (
    "multipliers",
    "cycles",
    "fold",
    "constant",
    "thresholds",
    "table_room",
    "host_table",
    "least_fifos",
    "updatable",
)
"""Options of dataflow designs alone."""


def add_engine_options(parser: Parser) -> None:
    """Adds the structure and the sizes of an engine."""
    add = parser.add_argument
    add(
        "--structure", choices=("dataflow", "engine"), default="dataflow",
        help="a unit for each layer, or a program of one engine for all models (default: dataflow)",
    )  # fmt: skip
    add(
        "--lanes",
        type=whole(2),
        metavar="N",
        help=f"rows and columns of an engine's array (default: {EngineShape().lanes})",
    )
    add(
        "--memory", type=_memory, action="append", default=[], metavar="NAME=WORDS",
        help=f"an engine's room for one model: {', '.join(_MEMORIES)}; may be repeated",
    )  # fmt: skip


def shape_of(arguments: argparse.Namespace) -> EngineShape:
    """The engine that was asked for.

    Raises:
        ConfigError: a size is none that it can have.
    """
    sizes = {} if arguments.lanes is None else {"lanes": arguments.lanes}
    try:
        return EngineShape(**sizes, **dict(arguments.memory))
    except ValueError as error:
        options = {name: f"--memory {option}" for option, name in _MEMORIES.items()}
        raise as_typed(error, {"lanes": "--lanes", **options}) from None


def refuse_engine_options(arguments: argparse.Namespace) -> None:
    """Raises for sizes of an engine where none is written.

    Raises:
        ConfigError: there are some.
    """
    for name in ("lanes", "memory"):
        if getattr(arguments, name):
            raise ConfigError(f"`--{name}` is of an engine; add `--structure engine`")


def write_on_engine(
    package: IntegerPackage, arguments: argparse.Namespace, searched: EngineShape | None = None
) -> int:  # fmt: skip
    """Writes an engine with a package's model; returns the exit status.

    Args:
        package: of the model.
        arguments: of the command.
        searched: the engine that a search picked; None for that of the options.

    Raises:
        ConfigError: an option has a wrong value, or the model does not fit.
    """
    for name in (*_DATAFLOW, "folding"):
        given = getattr(arguments, name)
        if given is not False and given not in (None, []) and not (searched and name == "folding"):
            raise ConfigError(f"`--{name.replace('_', '-')}` is of a dataflow design; leave it out for an engine")
    try:
        found = write_model(package.graph, searched or shape_of(arguments), arguments.out, package.digest)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if arguments.json:
        print_json(found)
    else:
        sys.stdout.write(render_engine(found, style_for(sys.stdout, os.environ)))
    return 0


def _memory(text: str) -> tuple[str, int]:
    name, _, words = text.partition("=")
    if name not in _MEMORIES or not words.isdecimal():
        raise argparse.ArgumentTypeError(f"must be NAME=WORDS, with a name of {', '.join(_MEMORIES)}, got {text!r}")
    return _MEMORIES[name], int(words)
