"""`stoker deploy calibrate`: the model of resources and clocks that searches use, fitted here."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, duration
from stoker.cli.output import json_of, print_json
from stoker.core.errors import ConfigError
from stoker.deploy.hardware.calibrating import calibrate, calibrate_engines, judged, judged_engines
from stoker.deploy.tools.devices import FPGAS, fpga
from stoker.ui.deploy.search_text import render_calibration
from stoker.ui.terminal import style_for

_DEVICE = "ecp5-45k"
_LIMIT_S = 900.0
_EPILOG = """\
Some four dozen small designs are synthesised and placed, each kept by content: about half an hour of one processor the
first time, seconds afterwards. The model that is shipped is of the same designs; eight of them were synthesised only.
With `--structure engine` engines of 2, 4 and 8 lanes are, and the model is of what an engine takes.
examples:
  stoker deploy calibrate --out ecp5.json
  stoker deploy calibrate --device ice40-hx8k
  stoker deploy calibrate --device xc7a100t            synthesised, not placed: a model of resources alone
  stoker deploy calibrate --device xc7a100t --structure engine --out engines.json
  stoker deploy search digits.pkg --model ecp5.json"""


def main(argv: list[str]) -> int:
    """Fits a model; returns the exit status.

    Raises:
        ConfigError: the file can't be written, or the device has no engines.
        MissingExtraError: a tool or scipy is not installed.
        ToolError: a tool fails or takes too long.
    """
    arguments = _parser().parse_args(argv)
    part = fpga(arguments.device)
    if arguments.structure == "engine":
        try:
            model = calibrate_engines(part, limit_s=arguments.limit)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        found = judged_engines(model)
    else:
        model, structures = calibrate(part, limit_s=arguments.limit)
        found = judged(model, structures)
    if arguments.out:
        try:
            arguments.out.write_text(json_of(model), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"`--out` must be a file that can be written: {error.strerror}") from error
    if arguments.json:
        print_json(found)
    else:
        sys.stdout.write(render_calibration(found, style_for(sys.stdout, os.environ)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy calibrate",
        usage="stoker deploy calibrate [--out FILE] [options]",
        description="Synthesises and places small designs, and fits the model of resources and clocks to them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    names = tuple(each.name for each in FPGAS)
    add("--device", choices=names, default=_DEVICE, help=f"{', '.join(names)} (default: {_DEVICE})", metavar="NAME")
    add(
        "--structure", choices=("dataflow", "engine"), default="dataflow",
        help="whose model: of units for layers, or of engines (default: dataflow)",
    )  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="file for the model")
    add("--limit", type=duration("15min"), default=_LIMIT_S, metavar="TIME", help="for each run of a tool")
    add("--json", action="store_true", help="print the errors of the fit for programs")
    return parser
