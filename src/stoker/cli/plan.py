"""`stoker plan`: which hardware, how many GPUs and which strategy come closest to a budget and a deadline."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, duration, split_program
from stoker.cli.output import print_json, write_text
from stoker.cli.traced import ABOUT_PROGRAM, planned_of
from stoker.core.errors import ConfigError
from stoker.perf.catalogue import Gpu, catalogue
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.choosing import PlanLimits
from stoker.perf.planning.memory import PlannedMemory
from stoker.perf.planning.offers import PriceList, only, read_gpus, read_prices, without_prices
from stoker.perf.planning.pricing import Predict, TrainingJob, anchored, predicted, refused
from stoker.perf.planning.report import Question, answer
from stoker.perf.planning.space import Space
from stoker.perf.prediction.anchor import Anchor
from stoker.ui.plan_html import render_plan_page
from stoker.ui.plan_text import render_plan
from stoker.ui.terminal import style_for

_EPILOG = f"""\
{ABOUT_PROGRAM}
examples:
  stoker plan train.py --samples 5e6 --prices prices.toml --budget 500 --deadline 12h
  stoker plan model.py:step --samples 1e9 --gpu H100-SXM --gpu A100-80GB-SXM
  stoker plan train.py --samples 5e6 --batch 512 -- --epochs 3
  stoker plan train.py --samples 5e6 --prices prices.toml --html plan.html"""


def main(argv: list[str]) -> int:
    """Recommends a plan; returns the exit status.

    Raises:
        ConfigError: an option or a file has a wrong value.
        TracingError: the program cannot be characterised.
    """
    ours, theirs = split_program(argv)
    arguments = _parser().parse_args(ours)
    limits, prices = _limits(arguments), _prices(arguments)
    anchor = Anchor.from_run(arguments.anchor) if arguments.anchor else None
    batches, memory = planned_of(
        arguments.program, arguments.module, theirs, arguments.hint, "stoker plan", arguments.precision
    )  # fmt: skip
    try:
        question = _question(arguments, batches, memory, prices, limits, anchor)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    report = answer(question)
    if arguments.json:
        print_json(report)
    elif arguments.html:
        write_text(render_plan_page(report), arguments.html, "--html")
    else:
        command = shlex.join(["stoker", "plan", *ours, "--html", "plan.html", *(["--", *theirs] if theirs else [])])
        sys.stdout.write(render_plan(report, style_for(sys.stdout, os.environ), command))
    return 0 if report.picks and report.picks[0].keeps else 1


def _parser() -> Parser:
    parser = Parser(
        prog="stoker plan",
        usage="stoker plan PROGRAM --samples N [options] [-- arguments of the program]\n"
        "       stoker plan -m MODULE --samples N [options] [-- arguments of the program]",
        description="Recommends the GPUs, their number and the strategy that best meet a budget and a deadline.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--samples", required=True, type=_count, metavar="N", help="samples to train on, over all epochs")
    add("--budget", type=_amount, metavar="AMOUNT", help="the budget, in the currency of the prices")
    add("--deadline", type=_hours, metavar="TIME", help="the deadline (12h, 90min, 3d)")
    add("--sure", action="store_true", help="meet both even at the upper ends of the intervals")
    add(
        "--prices",
        type=Path,
        metavar="FILE",
        help="TOML list of servers and prices; without it GPU-hours are counted",
    )
    add("--gpus", type=Path, metavar="FILE", help="TOML of GPUs that the catalogue lacks")
    add(
        "--anchor",
        type=Path,
        metavar="RUN",
        help="folder of a `stoker profile` of the program, which sharpens all times",
    )
    add("--gpu", action="append", default=[], metavar="NAME", help="consider this GPU only; may be repeated")
    add("--max-gpus", type=_count, default=64, metavar="N", help="most GPUs that the job may take (default: 64)")
    add(
        "--batch", default="global", metavar="global|per-gpu|N",
        help="samples of an optimizer step: the program's own batch on any number of GPUs (default), that batch on "
        "each GPU, or N",
    )  # fmt: skip
    add(
        "--precision",
        choices=("fp32", "tf32", "fp16", "bf16", "fp8"),
        help="of products; by default what the program uses",
    )
    add(
        "--cpu-seconds-per-sample", type=duration("20ms"), metavar="TIME",
        help="core time to prepare one sample: gives the cores that the input needs; with fewer, steps wait",
    )  # fmt: skip
    add(
        "--comm", choices=("off", "auto"), default="off",
        help="auto: also replicas that exchange factors and rows where these are quicker; plans only, as those of "
        "`stoker exchange` (default: off)",
    )  # fmt: skip
    add("--hint", action="append", default=[], metavar="NAME=VALUE", help="as of `stoker perf features`")
    add("--html", metavar="FILE", help="write the answer as one page with a plot (- prints it)")
    add("--json", action="store_true", help="print the answer for programs")
    add("-m", dest="module", metavar="MODULE", help="a program that runs as `python -m MODULE`")
    add("program", metavar="PROGRAM", nargs="?", default="", help="script, module:function or features.json")
    return parser


def _count(text: str) -> int:
    try:
        value = float(text.replace("_", "").replace(",", ""))
    except ValueError:
        value = math.nan
    if not 1 <= value < 1e18 or value != int(value):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, such as 5000000 or 5e6, got {text!r}")
    return int(value)


def _amount(text: str) -> float:
    try:
        value = float(text.replace("_", "").replace(",", "").lstrip("$"))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive amount, got {text!r}")
    return value


def _hours(text: str) -> float:
    return duration("12h, 90min or 3d")(text) / 3600


def _limits(arguments: argparse.Namespace) -> PlanLimits:
    if arguments.budget is not None and arguments.prices is None:
        raise ConfigError(
            "`--budget` must go with `--prices FILE`, a list of servers and what they cost (docs/guide/plan.md)"
        )
    return PlanLimits(
        budget=math.inf if arguments.budget is None else arguments.budget,
        deadline_h=math.inf if arguments.deadline is None else arguments.deadline,
        sure=arguments.sure,
    )


def _prices(arguments: argparse.Namespace) -> PriceList:
    known: dict[str, Gpu] = read_gpus(arguments.gpus) if arguments.gpus else dict(catalogue())
    prices = read_prices(arguments.prices, known) if arguments.prices else without_prices(known)
    try:
        return only(prices, arguments.gpu) if arguments.gpu else prices
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _question(
    arguments: argparse.Namespace, batches: Batches, memory: PlannedMemory, prices: PriceList, limits: PlanLimits,
    anchor: Anchor | None,
) -> Question:  # fmt: skip
    first = batches.first
    word: str = arguments.batch
    batch = batches.own if word in ("global", "per-gpu") else _batch(word)
    notes = [f"`{unknown.name}` at {unknown.where} has no formula: its FLOPs are missing" for unknown in first.unknown]
    return Question(
        name=first.name,
        job=TrainingJob(
            samples=arguments.samples, batches=batches, cpu_seconds_per_sample=_cpu_seconds(arguments, anchor),
            predict=_predictor(arguments, batches, anchor), fits=memory.fits,
            recomputes=memory.recomputes, refuses=refused(),
        ),
        space=Space(
            offers=prices.offers, batch=batch, grows=word == "per-gpu", max_gpus=arguments.max_gpus,
            embeddings=first.weights.embedding_count > 0, late=arguments.comm == "auto",
        ),
        limits=limits, prices=prices, notes=tuple(notes),
    )  # fmt: skip


def _predictor(arguments: argparse.Namespace, batches: Batches, anchor: Anchor | None) -> Predict:
    return anchored(anchor, batches, arguments.precision) if anchor else predicted(arguments.precision)


def _cpu_seconds(arguments: argparse.Namespace, anchor: Anchor | None) -> float | None:
    """CPU seconds of a sample, as given, or else as measured."""
    given: float | None = arguments.cpu_seconds_per_sample
    return given if given is not None or anchor is None else anchor.cpu_seconds_per_sample


def _batch(word: str) -> int:
    try:
        return _count(word)
    except argparse.ArgumentTypeError:
        raise ConfigError(f"`--batch` must be global, per-gpu or a whole number of at least 1, got {word!r}") from None
