"""`stoker deploy verify`: a design's simulator against the law, on every output."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from stoker.cli.arguments import Parser, duration, whole
from stoker.cli.deploy.engine_options import add_engine_options, refuse_engine_options, shape_of
from stoker.cli.deploy.user_functions import UserFunction, printing_aside
from stoker.cli.output import print_json
from stoker.core.errors import ConfigError
from stoker.deploy.batches import parts_of
from stoker.deploy.engines.ends import taken
from stoker.deploy.hardware.activity import activity, engine_activity, keep_activity
from stoker.deploy.hardware.designing import chosen_foldings, design
from stoker.deploy.hardware.engine_updates import check_change, verify_changes
from stoker.deploy.hardware.engines import verify_engine, write_model
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.hardware.netlists import structure_of, verify_netlist, verify_units
from stoker.deploy.hardware.updates import verify_updates
from stoker.deploy.hardware.verification import random_samples, verify
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.package.folder import read_package
from stoker.deploy.rtl.engine.files import is_engine, read_engine
from stoker.deploy.rtl.generate import read_design
from stoker.deploy.rtl.updating import update_of
from stoker.deploy.search.report import engine_of, foldings_of, read_pick
from stoker.deploy.tools.devices import FPGAS, fpga
from stoker.deploy.tools.running import work_folder
from stoker.records.deploy.hardware import DesignActivity, VerifiedNetlist
from stoker.ui.deploy.hardware_text import render_verification
from stoker.ui.terminal import style_for

_SAMPLES = 100
_LIMIT_S = 3600.0
_EPILOG = """\
Samples are sent back to back, with random pauses on both sides, and to a slow reader; all outputs are compared with the
law in NumPy. LOADER returns batches as of `stoker deploy quantise`; without it numbers are drawn from the whole range
of each input, which reaches more than real samples do.
examples:
  stoker deploy verify digits.pkg                              a design of the default size, random samples
  stoker deploy verify digits.pkg --design rtl --data calib.py:test_loader
  stoker deploy verify digits.pkg --structure engine           a program of an engine of the default size
  stoker deploy verify digits.pkg --design rtl --update retrained.pkg
  stoker deploy verify digits.pkg --structure engine --update other.pkg    another program while the first answers
  stoker deploy verify digits.pkg --netlist ecp5-45k --units   what yosys makes of each unit, simulated"""


def main(argv: list[str]) -> int:
    """Verifies a design; returns 0 if every output is the law's, otherwise 1.

    Raises:
        ConfigError: an option has a wrong value, or the design is not one of this package.
        MissingExtraError: Verilator is not installed.
        PackageError: the package is missing or damaged.
        ToolError: a tool fails or takes too long.
    """
    arguments = _parser().parse_args(argv)
    if arguments.units and not arguments.netlist:
        raise ConfigError("`--units` is of cells, and needs `--netlist` with the name of an FPGA")
    package = read_package(arguments.package)
    other = read_package(arguments.update) if arguments.update else None
    try:
        with printing_aside(arguments.json):
            inputs = (
                taken(package.graph, _batches(package.graph, arguments.data, arguments.samples))
                if arguments.data
                else random_samples(package.graph, arguments.samples or _SAMPLES, arguments.seed)
            )
        with work_folder("design") as made:
            folder = arguments.design or made
            pick = read_pick(arguments.folding, package.digest) if arguments.folding else None
            engine = engine_of(pick) if pick else None
            if arguments.design is None and (engine or arguments.structure == "engine"):
                write_model(package.graph, engine or shape_of(arguments), folder, package.digest)
            elif arguments.design is None:
                refuse_engine_options(arguments)
                foldings = chosen_foldings(package.graph, given=foldings_of(pick) if pick else None)
                design(
                    package.graph, foldings, folder, package.digest, updatable=other is not None,
                    constant=pick.constant if pick else (), host_tables=pick.host_tables if pick else None,
                    thresholds=pick.thresholds if pick else (),
                )  # fmt: skip
            elif (read_engine(folder) if is_engine(folder) else read_design(folder)).source != package.digest:
                structure = " --structure engine" if is_engine(folder) else ""
                raise ConfigError(
                    f"`{folder}` must be a design of `{arguments.package}`, and was made from another; "
                    f"write it again with `stoker deploy rtl {arguments.package} --out {folder}{structure}`"
                )
            if other is not None and is_engine(folder):  # before the build: what does not fit is known at once
                check_change(package.graph, other.graph, read_engine(folder))
            elif other is not None:
                update_of(read_design(folder), other.graph, other.digest)
            if arguments.netlist and is_engine(folder):
                raise ConfigError(f"`--netlist` is of a dataflow design, and `{folder}` holds an engine; leave it out")
            proven = verify_engine if is_engine(folder) else verify
            found = proven(package.graph, folder, inputs, limit_s=arguments.limit)
            if other is not None:
                changed = verify_changes if is_engine(folder) else verify_updates
                updates = changed(package, other, folder, inputs, limit_s=arguments.limit)
                found = structs.replace(found, updates=updates)
            if arguments.netlist:
                cells = _netlist(package.graph, folder, inputs, arguments)
                found = structs.replace(found, netlist=cells)
            if arguments.activity:
                found = structs.replace(found, activity=_activity(package.graph, folder, inputs, arguments.limit))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if arguments.json:
        print_json(found)
    else:
        sys.stdout.write(render_verification(found, style_for(sys.stdout, os.environ)))
    return 0 if found.equal else 1


def _activity(
    graph: IntegerGraph, folder: Path, inputs: Mapping[str, Integers], limit_s: float
) -> DesignActivity:  # fmt: skip
    """What changes in a design or an engine, which is kept for reports of it."""
    if is_engine(folder):
        digest, found = read_engine(folder).digest, engine_activity(graph, folder, inputs, limit_s=limit_s)
    else:
        digest, structure = read_design(folder).digest, structure_of(graph, read_design(folder))
        found = activity(structure, folder, device_inputs(graph, structure.host_tables, inputs), limit_s=limit_s)
    keep_activity(digest, found)
    return found


def _netlist(
    graph: IntegerGraph, folder: Path, inputs: Mapping[str, Integers], arguments: argparse.Namespace
) -> VerifiedNetlist:  # fmt: skip
    part = fpga(arguments.netlist)
    if not arguments.units:
        return verify_netlist(graph, folder, part, inputs, limit_s=arguments.limit)
    return verify_units(graph, structure_of(graph, read_design(folder)), part, inputs, limit_s=arguments.limit)


def _batches(graph: IntegerGraph, loader: str, most: int | None) -> Mapping[str, Any]:
    """The inputs of all batches of a loader, by name; what follows them in a batch are labels."""
    gathered: list[list[Any]] = [[] for _ in graph.inputs]
    count = 0
    for batch in UserFunction(loader).batches():
        parts = parts_of(batch, [port.name for port in graph.inputs])
        if len(parts) < len(gathered):
            raise ConfigError(f"`{loader}` must return batches with {len(gathered)} inputs, got {len(parts)}")
        for kept, part in zip(gathered, parts, strict=False):
            kept.append(np.asarray(part))
        count += len(gathered[0][-1])
        if most is not None and count >= most:
            break
    if not count:
        raise ConfigError(f"`{loader}` must return samples, got none")
    return {port.name: np.concatenate(parts)[:most] for port, parts in zip(graph.inputs, gathered, strict=True)}


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy verify",
        usage="stoker deploy verify PACKAGE [options]",
        description="Simulates a design and compares every output with the law.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--design", type=Path, metavar="DIR", help="folder that `stoker deploy rtl` wrote (default: a new design)"
    )
    which.add_argument("--folding", type=Path, metavar="FILE", help="a new design, the pick of a search: its report")
    add_engine_options(parser)
    add("--update", type=Path, metavar="PACKAGE", help="another model, which comes and goes in mid-stream")
    names = tuple(each.name for each in FPGAS if each.tools.models)
    add("--netlist", choices=names, metavar="NAME", help=f"simulate its cells on this FPGA as well: {', '.join(names)}")
    add("--units", action="store_true", help="with --netlist: the cells of each unit alone, which is fast for any size")
    add("--activity", action="store_true", help="count changes of bits by unit: an index of what moves, not power")
    add("--data", metavar="LOADER", help="file.py:function or module:function of batches to send")
    add("--samples", type=whole(1), metavar="N", help=f"how many (default: all of LOADER, or {_SAMPLES} at random)")
    add("--seed", type=whole(0), default=0, metavar="N", help="of random samples (default: 0)")
    add("--limit", type=duration("1h"), default=_LIMIT_S, metavar="TIME", help="for each tool (default: 1h)")
    add("--json", action="store_true", help="print it for programs")
    add("package", type=Path, metavar="PACKAGE", help="folder that `stoker deploy quantise` wrote")
    return parser
