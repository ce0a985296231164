"""`stoker deploy rtl`: a package becomes a dataflow design in SystemVerilog, or a program of an engine."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, as_typed, whole
from stoker.cli.deploy.engine_options import add_engine_options, refuse_engine_options, write_on_engine
from stoker.cli.output import print_json
from stoker.deploy.hardware.designing import MULTIPLIERS, chosen_foldings, design
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import on_host, tables_of
from stoker.deploy.package.folder import read_package
from stoker.deploy.rtl.folding import Folding
from stoker.deploy.rtl.memories import WIDEST_COMPARED
from stoker.deploy.search.report import engine_of, foldings_of, read_pick
from stoker.records.deploy.search import DesignRow
from stoker.ui.deploy.hardware_text import render_design
from stoker.ui.terminal import style_for

_FOLD = re.compile(r"(?P<layer>.+)=(?P<pe>[0-9]+)x(?P<lanes>[0-9]+)(?:x(?P<taps>[0-9]+))?", re.ASCII)
_CONSTANT = re.compile(r"(?P<layer>.+?)(?:=(?P<results>[0-9]+))?", re.ASCII)
_EPILOG = """\
A layer's unit computes RESULTS x CHANNELS x TAPS products in a cycle. The design takes AXI4-Streams, one for each input
and output, and an AXI4-Lite port with counters and a watchdog; design.json says what they carry.
examples:
  stoker deploy rtl digits.pkg --out rtl                       the fastest within 24 multipliers
  stoker deploy rtl digits.pkg --out rtl --cycles 1024         the smallest with 1,024 cycles a sample
  stoker deploy rtl digits.pkg --out rtl --fold conv2=4x8x3
  stoker deploy rtl digits.pkg --out rtl --constant dense=4    its weights in the circuit, four results in a cycle
  stoker deploy rtl digits.pkg --out rtl --folding search.json what `stoker deploy search --out` picked
  stoker deploy rtl digits.pkg --out rtl --structure engine    a program of an engine that runs any model"""


def main(argv: list[str]) -> int:
    """Writes a design; returns the exit status.

    Raises:
        ConfigError: an option has a wrong value, an operation has no unit, an engine too little room, or the folder
            cannot be written or holds something else.
        PackageError: the package is missing or damaged.
    """
    arguments = _parser().parse_args(argv)
    package = read_package(arguments.package)
    if arguments.structure == "engine":
        return write_on_engine(package, arguments)
    refuse_engine_options(arguments)
    try:
        pick = read_pick(arguments.folding, package.digest) if arguments.folding else None
        if pick and (engine := engine_of(pick)):
            return write_on_engine(package, arguments, engine)
        searched = foldings_of(pick) if pick else {}
        folded = dict(arguments.fold)
        foldings = chosen_foldings(
            package.graph, multipliers=arguments.multipliers, cycles=arguments.cycles,
            given=searched | folded, constant=dict(arguments.constant),
        )  # fmt: skip
        picked = [each for each in (pick.constant if pick else ()) if each not in folded]
        constant = dict.fromkeys((*picked, *(name for name, _ in arguments.constant)))
        thresholds = tuple(dict.fromkeys((*(pick.thresholds if pick else ()), *arguments.thresholds)))
        found = design(
            package.graph, foldings, arguments.out, package.digest, "least" if arguments.least_fifos else "full",
            updatable=arguments.updatable, constant=tuple(constant),
            host_tables=_host_tables(package.graph, arguments, pick), thresholds=thresholds,
        )  # fmt: skip
    except ValueError as error:
        raise as_typed(error, ("fold", "constant", "thresholds", "cycles", "multipliers")) from None
    if arguments.json:
        print_json(found)
    else:
        sys.stdout.write(render_design(found, style_for(sys.stdout, os.environ)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy rtl",
        usage="stoker deploy rtl PACKAGE --out DIR [options]",
        description="Writes a design in SystemVerilog: a unit for each layer with streams between them, or an engine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", required=True, type=Path, metavar="DIR", help="folder to write into")
    add_engine_options(parser)
    bound = parser.add_mutually_exclusive_group()
    bound.add_argument(
        "--multipliers", type=whole(1), metavar="N",
        help=f"of all arrays: the fastest design within them (default: {MULTIPLIERS}, or one a layer)",
    )  # fmt: skip
    bound.add_argument("--cycles", type=whole(1), metavar="N", help="of a sample: the smallest design as fast")
    bound.add_argument("--folding", type=Path, metavar="FILE", help="the pick of a search: its report")
    add(
        "--fold", type=_fold, action="append", default=[], metavar="LAYER=RxC[xT]",
        help="results, channels and taps of a layer in a cycle, by the name of its result; may be repeated",
    )  # fmt: skip
    add(
        "--constant", type=_constant, action="append", default=[], metavar="LAYER[=R]",
        help="a layer whose weights become part of the circuit: additions, no multipliers and memories; R results "
        "in a cycle (default: all of a window); may be repeated",
    )  # fmt: skip
    add(
        "--thresholds", action="append", default=[], metavar="LAYER",
        help=f"a layer whose results, of at most {WIDEST_COMPARED} bits, are found by comparing sums with thresholds, "
        "without multipliers; may be repeated",
    )  # fmt: skip
    tables = parser.add_mutually_exclusive_group()
    tables.add_argument(
        "--table-room", type=whole(0), metavar="KBIT",
        help="for tables of embeddings on the chip; what has no room stays on the host, which sends its rows: those "
        "tables that cost the fewest bytes a sample (default: all on the chip)",
    )  # fmt: skip
    tables.add_argument(
        "--host-table", action="append", default=[], metavar="LAYER",
        help="a table that stays on the host, by the name of its rows; may be repeated",
    )  # fmt: skip
    add("--least-fifos", action="store_true", help="FIFOs that never stop a sample, but may hold up a branch")
    add("--updatable", action="store_true", help="takes other weights while it runs; doubles the memories")
    add("--json", action="store_true", help="print it for programs")
    add("package", type=Path, metavar="PACKAGE", help="folder that `stoker deploy quantise` wrote")
    return parser


def _fold(text: str) -> tuple[str, Folding]:
    found = _FOLD.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be LAYER=RESULTSxCHANNELS[xTAPS] such as conv2=4x8x3, got {text!r}")
    return found["layer"], Folding(int(found["pe"]), int(found["lanes"]), int(found["taps"] or 1))


def _constant(text: str) -> tuple[str, int | None]:
    found = _CONSTANT.fullmatch(text)
    if found is None or "=" in found["layer"]:
        raise argparse.ArgumentTypeError(f"must be LAYER or LAYER=RESULTS such as dense=4, got {text!r}")
    return found["layer"], int(found["results"]) if found["results"] else None


def _host_tables(graph: IntegerGraph, arguments: argparse.Namespace, pick: DesignRow | None) -> list[str] | None:
    """Tables on the host; None where nothing was asked about tables."""
    if arguments.table_room is not None:
        return on_host(tables_of(graph), 1000 * arguments.table_room)
    named = list(arguments.host_table)
    return named or (list(pick.host_tables) if pick and tables_of(graph) else None)
