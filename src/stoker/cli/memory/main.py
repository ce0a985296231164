"""`stoker memory`: what holds a program's memory, whether it fits a GPU, and what lowers its peak, without one."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, split_program, whole
from stoker.cli.memory.snapshot import show_snapshot
from stoker.cli.output import print_json, write_text
from stoker.cli.traced import MemoryTraces, memory_of
from stoker.core.errors import ConfigError
from stoker.core.units import parse_bytes
from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.features.child_process import children_are_forks
from stoker.perf.memory import capacity
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.reporting import MemoryQuestion, report
from stoker.perf.memory.snapshots.snapshot_file import is_pickle
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.strategy import DataParallel, Machines, Strategy
from stoker.records.fitting import FitPlan
from stoker.records.memory import MemoryReport
from stoker.run.fitting.devices import EMULATED, FitDevice
from stoker.run.fitting.planning import certified_plan
from stoker.run.fitting.pricing import host_link, seconds_of
from stoker.ui.fitting.words import write_plan
from stoker.ui.memory.html import render_memory_page
from stoker.ui.memory.text import render_memory
from stoker.ui.terminal import style_for

_PRICED = "A100-80GB-SXM"
"""GPU whose times the costs of remedies are shares of, where none is named."""
_EPILOG = """\
PROGRAM is a script, run up to its second optimizer step without a GPU; or module:function (file.py:function), which
returns what stoker.perf.characterise takes. Nothing is computed, and no memory of a GPU is used. Or it is a snapshot
of torch.cuda.memory._dump_snapshot: what held the memory then. None of its content is run.
examples:
  stoker memory train.py
  stoker memory train.py --gpu RTX-4090
  stoker memory model.py:step --memory 24GB --ranks 8
  stoker memory train.py --gpu T4 -- --batch-size 64
  stoker memory train.py --gpu RTX-4090 --html memory.html
  stoker memory train.py --cpu --memory 8GB
  stoker memory snapshot.pickle"""


def main(argv: list[str]) -> int:
    """Prints the report; returns the exit status, 1 if the program does not fit.

    Raises:
        ConfigError: an option has a wrong value.
        TracingError: the program cannot be traced.
    """
    ours, theirs = split_program(argv)
    arguments = _parser().parse_args(ours)
    if arguments.program and is_pickle(Path(arguments.program)):
        return show_snapshot(Path(arguments.program), arguments, theirs)
    device, available = _device(arguments)
    with children_are_forks():
        traced = memory_of(
            arguments.program, arguments.module, theirs, arguments.hint, sized=available is not None,
            target=device.target,
        )  # fmt: skip
        found = report(_question(arguments, traced, device, available))
    fitted = "" if found.plan is None or not found.plan.measures else write_plan(found.plan)
    if arguments.json:
        print_json(found)
    elif arguments.html:
        write_text(render_memory_page(found, fitted), arguments.html, "--html")
    else:
        command = _next(found, arguments, theirs)
        sys.stdout.write(render_memory(found, style_for(sys.stdout, os.environ), command, fitted))
    return 1 if found.fits is False else 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker memory",
        usage="stoker memory PROGRAM [options] [-- arguments of the program]\n"
        "       stoker memory -m MODULE [options] [-- arguments of the program]\n"
        "       stoker memory SNAPSHOT [--html FILE] [--json]",
        description="Predicts what holds a program's memory, whether it fits a GPU, and what lowers its peak.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gpu", metavar="NAME", help="GPU that it should fit, as of `stoker plan`")
    add("--memory", type=_size, metavar="SIZE", help="memory that it should fit, such as 20GB; instead of the GPU's")
    add(
        "--cpu", action="store_true",
        help="as it runs on CPUs: bytes of tensors alone, as `--fit` counts them on a machine without a GPU",
    )  # fmt: skip
    add("--ranks", type=whole(1), default=1, metavar="N", help="GPUs that train together (default: 1)")
    add("--hint", action="append", default=[], metavar="NAME=VALUE", help="as of `stoker perf features`")
    add("--html", metavar="FILE", help="write the report as one page with a picture of the step (- prints it)")
    add("--json", action="store_true", help="print the report for programs")
    add("-m", dest="module", metavar="MODULE", help="a program that runs as `python -m MODULE`")
    add("program", metavar="PROGRAM", nargs="?", default="", help="script, module:function or snapshot")
    return parser


def _size(text: str) -> int:
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a size such as 20GB: {error}") from None
    if size <= 0 or re.fullmatch(r"\s*[0-9.]+\s*", text):
        raise argparse.ArgumentTypeError(f"must be a positive size with its unit, such as 20GB, got {text!r}")
    return size


def _card(name: str) -> Gpu:
    try:
        return gpu(name)
    except ValueError as error:
        raise ConfigError(f"{str(error).replace('`gpu`', '`--gpu`')}; see `stoker memory --help`") from None


def _device(arguments: argparse.Namespace) -> tuple[FitDevice, int | None]:
    """What the program is traced for, and the bytes that it is to fit into; None where none are named."""
    available: int | None = arguments.memory
    if arguments.cpu:
        if arguments.gpu:
            raise ConfigError(f"`--cpu` must go without `--gpu`, got {arguments.gpu}; leave one out")
        return FitDevice(name=EMULATED, budget=available or 0, target="cpu"), available
    card = _card(arguments.gpu) if arguments.gpu else None
    if available is None and card is not None:
        available = int(capacity(card))
    return FitDevice(name=arguments.gpu or "", budget=available or 0, target="cuda"), available


def _question(
    arguments: argparse.Namespace, traced: MemoryTraces, device: FitDevice, available: int | None
) -> MemoryQuestion:
    traced = traced.on(device)
    features, predictor = traced.features, Predictor()
    machines = Machines(gpu=_card(arguments.gpu or _PRICED), gpus=arguments.ranks)

    def step_s(kind: DataParallel) -> float | None:
        found = predictor.predict(features, machines, Strategy(data=kind))
        return None if found.tier == "refused" else found.seconds

    def planned(question: FitQuestion) -> FitPlan:
        # Hints are no part of `stoker run`, and a definition is no program.
        if not traced.program or arguments.hint:
            return plan_fit(question)
        return certified_plan(traced.program, device, question)

    return MemoryQuestion(
        features=features, timeline=seconds_of(features, traced.timeline, device), larger=traced.larger,
        traced=traced.sized, evaluation=traced.evaluation, evaluates=traced.evaluates,
        device=device.name if arguments.memory is None or device.emulated else "", available=available,
        emulated=device.emulated, model=traced.model, link=host_link(device) if traced.program else None,
        planned=planned, ranks=arguments.ranks, step_s=step_s,
    )  # fmt: skip


def _next(found: MemoryReport, arguments: argparse.Namespace, theirs: list[str]) -> str:
    """The program with expandable segments, if that is all it needs; else the run that makes it fit."""
    plan = found.plan
    if found.fits is not False or plan is None or not plan.changes or ":" in arguments.program:
        return ""
    words = ["-m", arguments.module] if arguments.module else [arguments.program]
    if all(each.kind == "expandable" for each in plan.measures):
        return f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python {shlex.join([*words, *theirs])}"
    return shlex.join([
        "stoker", "run", "--fit", "auto", "--device-memory", _written(plan.budget_bytes), *words, *theirs
    ])  # fmt: skip


def _written(size: int) -> str:
    """A size as it is typed, to the byte where a unit of 1000 says it."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if not size % scale:
            return f"{size // scale}{unit}"
    return f"{size / 1e9:.1f}GB" if size >= 10**10 else f"{size // 10**6}MB"
