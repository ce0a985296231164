"""`stoker deploy fit`: a design on an FPGA by open tools."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from msgspec import structs

from stoker.cli.arguments import Parser, duration, whole
from stoker.cli.output import print_json
from stoker.core.errors import ConfigError
from stoker.deploy.hardware.activity import read_activity
from stoker.deploy.hardware.engines import fit_engine
from stoker.deploy.hardware.fitting import fit
from stoker.deploy.rtl.engine.files import is_engine, read_engine
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.tools.devices import FPGAS, fpga
from stoker.deploy.tools.running import of_design
from stoker.ui.deploy.hardware_text import render_fit
from stoker.ui.terminal import style_for

_DEVICE = "ecp5-45k"
_LIMIT_S = 3600.0
_EPILOG = """\
yosys makes cells of the design, nextpnr places and routes them; both are kept by content. Designs for 7 series (xc7...)
are synthesised, not placed: no clock is known, and latency is in cycles. All figures are estimates of these tools: no
board is there, and power is not estimated. If `verify --activity` has counted what changes in this very design, that
index is shown. The tools' first start prepares them, which takes minutes.
examples:
  stoker deploy fit rtl
  stoker deploy fit rtl --device ecp5-85k --seed 3
  stoker deploy fit rtl --device xc7a35t"""


def main(argv: list[str]) -> int:
    """Places a design; returns the exit status.

    Raises:
        ConfigError: the folder holds no design.
        DeviceTooSmallError: the part has too little of something.
        MissingExtraError: a tool is not installed.
        ToolError: a tool fails or takes too long.
    """
    arguments = _parser().parse_args(argv)
    try:
        placed, read = (fit_engine, read_engine) if is_engine(arguments.design) else (fit, read_design)
        with of_design(arguments.design):
            found = placed(arguments.design, fpga(arguments.device), limit_s=arguments.limit, seed=arguments.seed)
        found = structs.replace(found, activity=read_activity(read(arguments.design).digest))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if arguments.json:
        print_json(found)
    else:
        sys.stdout.write(render_fit(found, style_for(sys.stdout, os.environ), _counting(arguments)))
    return 0


def _counting(arguments: argparse.Namespace) -> str:
    """The command that counts changes of a design's bits."""
    return shlex.join(["stoker", "deploy", "verify", "PACKAGE", "--design", str(arguments.design), "--activity"])


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy fit",
        usage="stoker deploy fit DIR [options]",
        description="Synthesises, places and routes a design on an FPGA.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = tuple(each.name for each in FPGAS)
    add("--device", choices=names, default=_DEVICE, help=f"{', '.join(names)} (default: {_DEVICE})", metavar="NAME")
    add("--seed", type=whole(0), default=1, metavar="N", help="of the placement (default: 1)")
    add("--limit", type=duration("1h"), default=_LIMIT_S, metavar="TIME", help="for each tool (default: 1h)")
    add("--json", action="store_true", help="print it for programs")
    add("design", type=Path, metavar="DIR", help="folder that `stoker deploy rtl` wrote")
    return parser
