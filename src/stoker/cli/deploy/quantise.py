"""`stoker deploy quantise`: a trained model becomes a package of whole numbers, measured against itself."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.cli.arguments import Parser, as_typed, share, whole
from stoker.cli.deploy.user_functions import UserFunction, printing_aside
from stoker.cli.output import print_json
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.deploy.lowering.grids import Widths
from stoker.records.deploy.quantisation import QuantisationRecord
from stoker.ui.deploy.quantisation_text import render_quantisation
from stoker.ui.terminal import style_for

if TYPE_CHECKING:
    from stoker.deploy.importing.quantising import Quantised

_SAMPLES = 2000
_STEPS = 6
"""Packages on the way to the narrowest widths: a search solves each."""
_EPILOG = """\
MODEL is a function that returns a trained torch.nn.Module; LOADER one that returns batches (a DataLoader does): the
model's arguments, and labels after them if there are any. Half of the samples give the ranges, a quarter chooses among
ways to take them, a quarter only judges; give no samples of your test set.
examples:
  stoker deploy quantise model.py:make --data calib.py:loader --out digits.pkg
  stoker deploy quantise model.py:make --data calib.py:loader --out small.pkg --weights 4 --width head=8
  stoker deploy quantise model.py:make --data calib.py:loader --out mixed.pkg --loss 0.5%
  stoker deploy quantise model.py:make --data calib.py:loader --out mixed.pkg --loss 0.5% --steps widths"""


class Answer(QuantisationRecord, frozen=True, kw_only=True):
    """What `--json` prints."""

    package: str
    digest: str


def main(argv: list[str]) -> int:
    """Writes the package; returns the exit status.

    Raises:
        ConfigError: an option has a wrong value.
        ModelImportError: an operation, size or weight is not supported.
        CalibrationError: the samples do not do.
        PackageError: the package can't be written.
        MissingExtraError: torch or safetensors is not installed.
    """
    arguments = _parser().parse_args(argv)
    widths = _widths(arguments)
    if arguments.save is not None and arguments.loss is None:
        raise ConfigError("`--save` must go with `--loss`, within which widths become narrower; add `--loss 0.5%`")
    if arguments.steps is not None and arguments.loss is None:
        raise ConfigError("`--steps` must go with `--loss`, within which widths become narrower; add `--loss 0.5%`")
    require("torch", extra="torch")  # both named before the user's functions run
    require("safetensors.numpy", extra="deploy")
    from stoker.deploy.package.folder import write_package

    with printing_aside(arguments.json):
        found = _quantised(arguments, widths)
    digest = write_package(arguments.out, found.graph, arguments.model, found.record)
    if arguments.json:
        fields = {name: getattr(found.record, name) for name in found.record.__struct_fields__}
        print_json(Answer(**fields, package=str(arguments.out), digest=digest))
    else:
        style = style_for(sys.stdout, os.environ)
        sys.stdout.write(render_quantisation(found.record, str(arguments.out), digest, style))
    return 0


def _quantised(arguments: argparse.Namespace, widths: Widths) -> Quantised:
    """The user's model on whole numbers; packages of steps on the way are written."""
    torch = require("torch", extra="torch")
    from stoker.deploy.importing.exporting import precision_of
    from stoker.deploy.importing.mixed import quantise_steps
    from stoker.deploy.importing.quantising import quantise
    from stoker.deploy.importing.samples import gather

    make, loader = UserFunction(arguments.model), UserFunction(arguments.data)
    module = make()
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(f"`{arguments.model}` must return a torch.nn.Module, got {type(module).__name__}")
    samples = gather(loader.batches(), arguments.samples, module)
    if precision := precision_of(module):
        _tell(f"the model's weights are {precision}; it is compared with a float32 copy of it")
    for line in samples.notes:
        _tell(line)
    if arguments.loss is None:
        return quantise(module, samples, name=arguments.model, widths=widths, shifts=arguments.shifts)
    steps = quantise_steps(
        module, samples, most=arguments.loss, count=_STEPS if arguments.steps else 1, name=arguments.model,
        widths=widths, shifts=arguments.shifts, saved=arguments.save or "memory",
    )  # fmt: skip
    if arguments.steps:
        _write_steps(arguments.steps, steps, arguments.model)
    return steps[-1]


def _tell(line: str) -> None:
    print(f"stoker: {line}", file=sys.stderr)


def _write_steps(folder: Path, steps: Sequence[Quantised], model: str) -> None:
    """A package for each step, named by how many widths were made narrower; those of an earlier run go."""
    from stoker.deploy.package.folder import write_package

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("step[0-9][0-9][0-9]/manifest.json"):
            shutil.rmtree(old.parent)
    except OSError as error:
        raise ConfigError(f"`--steps` must be a folder that can be made: {error.strerror}") from error
    for each in steps:
        assert each.record.mixed is not None, "steps are of mixed widths"
        write_package(folder / f"step{each.record.mixed.taken:03d}", each.graph, model, each.record)


def _widths(arguments: argparse.Namespace) -> Widths:
    """Bits by layer from ``NAME=WEIGHTS`` or ``NAME=WEIGHTS/ACTIVATIONS``."""
    weights: dict[str, int] = {}
    activations: dict[str, int] = {}
    for given in arguments.width:
        name, _, bits = given.rpartition("=")
        own, _, result = bits.partition("/")
        if not name or not own.isdecimal() or (result and not result.isdecimal()):
            raise ConfigError(f"`--width` must be LAYER=WEIGHTS or LAYER=WEIGHTS/ACTIVATIONS in bits, got `{given}`")
        weights[name] = int(own)
        if result:
            activations[name] = int(result)
    try:
        Widths(weights=arguments.weights, activations=arguments.activations)
    except ValueError as error:
        raise as_typed(error, ("weights", "activations")) from None
    try:
        return Widths(
            weights=arguments.weights, activations=arguments.activations, weights_by_layer=weights,
            activations_by_layer=activations,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"`--width`: {error}") from None


def _parser() -> Parser:
    parser = Parser(
        prog="stoker deploy quantise",
        usage="stoker deploy quantise MODEL --data LOADER --out PACKAGE [options]",
        description="Turns a trained model into a package of whole numbers, and says how it compares with float.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="LOADER", help="file.py:function or module:function of calibration batches")
    add("--out", required=True, type=Path, metavar="PACKAGE", help="folder to write; an older package is replaced")
    add("--samples", type=whole(8), default=_SAMPLES, metavar="N", help=f"most samples to take (default: {_SAMPLES})")
    add("--weights", type=int, default=8, metavar="BITS", help="of weights, 2 to 8 (default: 8)")
    add("--activations", type=int, default=8, metavar="BITS", help="of results, 4 to 8 (default: 8)")
    add(
        "--width", action="append", default=[], metavar="LAYER=W[/A]",
        help="bits of one layer's weights and result, by the path of its module; may be repeated",
    )  # fmt: skip
    add(
        "--loss", type=share("0.5%"), metavar="SHARE",
        help="make widths of layers narrower, by measurement, within this share of changed decisions, such as 0.5%%",
    )  # fmt: skip
    add(
        "--save", choices=("memory", "multipliers"), metavar="WHAT",
        help="what `--loss` saves: memory (bits of weights; the default) or multipliers (bits that are multiplied)",
    )  # fmt: skip
    add(
        "--steps", type=Path, metavar="DIR",
        help=f"with `--loss`: folder for up to {_STEPS} packages on the way from the widest, all to be searched as one",
    )  # fmt: skip
    add("--shifts", action="store_true", help="scale results of layers by shifts only: no multipliers in hardware")
    add("--json", action="store_true", help="print the answer for programs")
    add("model", metavar="MODEL", help="file.py:function or module:function that returns the model")
    return parser
