"""`stoker deploy search`: which design of a package fits a device and keeps the limits."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from stoker.cli.arguments import Parser, as_typed, duration, share
from stoker.cli.output import json_of, print_json, write_text
from stoker.core.errors import ConfigError
from stoker.deploy.hardware.activity import read_activity
from stoker.deploy.package.folder import IntegerPackage, read_package
from stoker.deploy.search.engine_model import EngineModel, engine_model_of
from stoker.deploy.search.engines import EngineFamily
from stoker.deploy.search.families import ConstantForms, Dataflow, SearchedPackage, StructureFamily, constant_forms
from stoker.deploy.search.model import ResourceModel, model_of
from stoker.deploy.search.report import report_of
from stoker.deploy.search.searching import DesignLimits, RefusedFamily, check_alike, check_clock, search
from stoker.deploy.tools.devices import FPGAS, Fpga, fpga
from stoker.records.deploy.search import SearchReport
from stoker.ui.deploy.search_html import render_search_page
from stoker.ui.deploy.search_text import render_search
from stoker.ui.terminal import style_for

STRUCTURES = ("dataflow", "engine")
_DEVICE = "ecp5-45k"
_RATE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?)(?P<unit>[kM]?)(?:/s)?", re.ASCII)
_CLOCK = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?)(?:MHz)?", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6}
_EPILOG = """\
Foldings of all layers are solved exactly for the least share of the device, in terms of a model that was fitted to
synthesised units; the proof is printed. Weights may be part of the circuit, by layer, as additions; tables of
embeddings stay on the host where the chip has no room, those that cost the fewest bytes a sample. With a rate or a
latency the smallest design that keeps them is picked, otherwise the fastest that fits. Several packages of one model
(other widths, other requantisers) are searched as one, each as a unit for each layer and as a program of an engine;
what can't be built is shown with the reason. No tool of hardware runs. The status is 2 if nothing keeps all limits.
examples:
  stoker deploy search digits.pkg --device ecp5-45k --latency 400us --rate 20k
  stoker deploy search wide.pkg narrow.pkg --rate 50k --loss 0.5% --html search.html --out search.json
  stoker deploy search digits.pkg --device xc7a35t --clock 100MHz --rate 20k   # synthesised, not placed: no clock
  stoker deploy rtl digits.pkg --folding search.json --out rtl"""


def main(argv: list[str]) -> int:
    """Searches; returns 0 if a design keeps all limits, otherwise 2.

    Raises:
        ConfigError: an option has a wrong value, or the model has an operation without a unit.
        MissingExtraError: scipy or safetensors is not installed.
        PackageError: a package is missing or damaged.
    """
    arguments = _parser().parse_args(argv)
    packages = [(str(path), read_package(path)) for path in arguments.packages]
    try:
        report = searched(
            packages, fpga(arguments.device), wanted_of(arguments), arguments.model_file,
            STRUCTURES if arguments.structure == "any" else (arguments.structure,), arguments.clock,
            in_circuit=arguments.weights == "any", host=arguments.tables == "any",
            compares=arguments.requantisers == "any",
        )  # fmt: skip
    except ValueError as error:
        raise as_typed(error, ("rate", "latency", "clock")) from None
    if arguments.out:
        _save(report, arguments.out)
    if arguments.html:
        write_text(render_search_page(report), arguments.html, "--html")
    if arguments.json:
        print_json(report)
    elif not arguments.html:
        command = shlex.join(["stoker", "deploy", "search", *argv, "--html", "search.html"])
        sys.stdout.write(render_search(report, style_for(sys.stdout, os.environ), command))
    return 0 if report.pick else 2


def _save(report: SearchReport, path: Path) -> None:
    try:
        path.write_text(json_of(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`--out` must name a file that can be written, got `{path}`: {error.strerror}") from error


def searched(
    packages: list[tuple[str, IntegerPackage]], part: Fpga, wanted: DesignLimits, model_file: Path | None = None,
    structures: Sequence[str] = STRUCTURES, clock_mhz: float | None = None, *, in_circuit: bool = True,
    host: bool = True, compares: bool = True,
) -> SearchReport:  # fmt: skip
    """The report of a search over packages, each in each structure.

    Args:
        packages: with their names.
        part: that is searched on.
        wanted: limits.
        model_file: of a model of the part; the one that is shipped by default.
        structures: that are tried.
        clock_mhz: of a part without clocks.
        in_circuit: whether layers may have their weights in the circuit.
        host: whether tables may stay on the host.
        compares: whether requantisers may compare with thresholds.

    Raises:
        ConfigError: the file holds no model of the part.
        MissingExtraError: scipy is not installed.
        ValueError: no package can be built in any structure, inputs or outputs of two differ, or seconds are limited
            where no clock is known.
    """
    check_alike([(name, each.graph) for name, each in packages])
    check_clock(part, wanted, clock_mhz)
    model, engines = models_for(part, model_file)
    if clock_mhz is not None:
        model = model.at(clock_mhz)
    families: list[StructureFamily] = []
    refused: list[RefusedFamily] = []
    for name, each in packages:
        package = SearchedPackage(name=name, digest=each.digest, graph=each.graph, loss_frac=_loss(each))
        for structure in structures:
            try:
                if structure == "engine":
                    own = engines or engine_model_of(part)
                    families.append(EngineFamily(package, part, own if clock_mhz is None else own.at(clock_mhz)))
                    continue
                # A model that was fitted to no unit with weights in the circuit says nothing of one.
                forms = constant_forms(package.graph) if in_circuit and model.sums_off else ConstantForms()
                # The first of equals is picked: weights are in the circuit only where that takes less.
                families.append(Dataflow(package, part, model, ConstantForms(refused=forms.refused), host, compares))
                if forms.sums:
                    families.append(Dataflow(package, part, model, forms, host, compares))
            except ValueError as error:
                refused.append(RefusedFamily(name, structure, str(error)))
    if not families:
        raise ValueError(refused[0].why)
    found = report_of(search(families, wanted), wanted, part, refused, clock_mhz)
    return structs.replace(found, activity=read_activity(found.design)) if found.design else found


def add_limits(parser: Parser) -> None:
    """Adds the options that say what is wanted."""
    add = parser.add_argument
    names = tuple(each.name for each in FPGAS)
    add("--device", choices=names, default=_DEVICE, help=f"{', '.join(names)} (default: {_DEVICE})", metavar="NAME")
    add(
        "--structure", choices=("any", *STRUCTURES), default="any",
        help="a unit for each layer, a program of an engine, or the better one (default: any)",
    )  # fmt: skip
    add(
        "--clock", type=_clock, metavar="MHZ",
        help="the clock that the design will have, such as 100MHz: of devices on which designs are not placed",
    )  # fmt: skip
    add(
        "--weights", choices=("any", "memories"), default="any",
        help="of dataflow designs: in memories, or by layer in the circuit where that takes less (default: any)",
    )  # fmt: skip
    add(
        "--requantisers", choices=("any", "multipliers"), default="any",
        help="of dataflow designs on devices without multipliers: by these, or by layer by thresholds where that takes "
        "less (default: any)",
    )  # fmt: skip
    add(
        "--tables", choices=("any", "chip"), default="any",
        help="of embeddings in dataflow designs: on the chip, or on the host where they don't fit (default: any)",
    )  # fmt: skip
    add("--latency", type=duration("400us"), metavar="TIME", help="most, of a sample through an empty design")
    add("--rate", type=_rate, metavar="N", help="least samples a second, such as 20k")
    add(
        "--loss", type=share("0.5%", with_none=True, with_all=True), metavar="SHARE",
        help="most decisions that may differ from float, such as 0.5%%, as the package's samples measured",
    )  # fmt: skip
    add(
        "--model",
        dest="model_file",
        type=Path,
        metavar="FILE",
        help="model of resources, of units or of engines, that `stoker deploy calibrate` wrote",
    )


def wanted_of(arguments: argparse.Namespace) -> DesignLimits:
    """Limits from the options of :func:`add_limits`."""
    given = {"latency_s": arguments.latency, "rate_per_s": arguments.rate, "loss_frac": arguments.loss}
    return DesignLimits(**{name: value for name, value in given.items() if value is not None})


def models_for(part: Fpga, file: Path | None) -> tuple[ResourceModel, EngineModel | None]:
    """The model of a device's units, and that of engines where a file holds it; else the one that is shipped is meant.

    Raises:
        ConfigError: the file holds no model, or one of another family or grade of speed.
        ValueError: it is of engines, and the device has none.
    """
    if file is None:
        return model_of(part), None
    try:
        found = _read_model(file.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"`--model` must be a file that `stoker deploy calibrate` wrote, got {file}: {error}"
        ) from error
    if (found.family, found.grade) != (part.family, part.grade):
        raise ConfigError(
            f"`--model` must be of {part.name}, {part.family} of grade {part.grade}, "
            f"got {found.family} of grade {found.grade}"
        )
    own = engine_model_of(part) if isinstance(found, EngineModel) else model_of(part)
    if found.luts.keys() != own.luts.keys():
        raise ConfigError(
            f"`--model` must be of this version of stoker, got {file} of another; run `stoker deploy calibrate` again"
        )
    return (model_of(part), found) if isinstance(found, EngineModel) else (found, None)


def _read_model(data: bytes) -> ResourceModel | EngineModel:
    try:
        return msgspec.json.decode(data, type=ResourceModel)
    except msgspec.ValidationError as of_units:
        try:
            return msgspec.json.decode(data, type=EngineModel)
        except msgspec.ValidationError:
            raise of_units from None


def _loss(package: IntegerPackage) -> float | None:
    """Share of flips on samples that chose nothing, or the relative error of outputs that are no scores, if more."""
    if package.accuracy is None:
        return None
    found = package.accuracy.accept
    if found.flips is None:
        return found.error
    others = [each.error for each in found.outputs if each.flips is None]
    return max([found.flips / max(1, found.samples), *others])


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text)
    value = float(found["number"]) * _UNITS[found["unit"]] if found else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"must be samples a second such as 20000, 20k or 1.5M, got {text!r}")
    return value


def _clock(text: str) -> float:
    found = _CLOCK.fullmatch(text)
    value = float(found["number"]) if found else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"must be a clock in MHz such as 100MHz, got {text!r}")
    return value


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy search",
        usage="stoker deploy search PACKAGE... [options]",
        description="Finds the design that keeps the limits with the least share of a device, without running a tool.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_limits(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE", help="write the report, which `rtl --folding` and `verify --folding` read")
    add("--html", metavar="FILE", help="write the answer as one page (- prints it)")
    add("--json", action="store_true", help="print the answer for programs")
    add("packages", nargs="+", type=Path, metavar="PACKAGE", help="folder that `stoker deploy quantise` wrote")
    return parser
