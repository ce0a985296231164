"""`stoker exchange`: how a program's gradients are best exchanged over given ranks and a link, without any of them.

Of a run instead of a program it shows what that chose and measured.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from typing import cast

from stoker.cli.arguments import Parser, split_program, whole
from stoker.cli.exchange.of_run import is_run, show_run
from stoker.cli.output import print_json
from stoker.cli.traced import ABOUT_PROGRAM, batches_of
from stoker.core.errors import ConfigError
from stoker.core.host import memory_bytes
from stoker.core.units import parse_seconds
from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.communication.links import Interconnect, fabric_of, probed, stated
from stoker.perf.communication.methods import LEAVES, Leave
from stoker.perf.features.records import StepFeatures
from stoker.perf.machine.prediction import rank_of
from stoker.perf.machine.rates import Rates, RatesError, default_path, load
from stoker.perf.memory import capacity, needs
from stoker.perf.planning.exchanging import ExchangeQuestion, exchange
from stoker.perf.planning.pricing import precision_of
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.strategy import Strategy
from stoker.records.runlog import RUNS_FOLDER
from stoker.ui.exchange.plan_text import render_exchange
from stoker.ui.terminal import style_for

_GPU = "A100-80GB-SXM"
_RATE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([kMGT])bit(?:/s)?", re.ASCII)
_BITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_MEMORY = 64e9
"""Bytes/s between processes of a host, where no calibration has them: about one channel of memory (assumed)."""
_PLANNED = ("ranks", "link", "hosts", "gpu", "cpu", "comm_allow", "precision", "hint", "module")
"""Options of a plan: with any of them the word is a program."""
_EPILOG = f"""\
{ABOUT_PROGRAM}
Nothing is exchanged: the plan says what each method would send, and how long a step would take.
RUN is a run folder or the name of one under `{RUNS_FOLDER}`; by default the one that exchanged last.
examples:
  stoker exchange
  stoker exchange train.py --ranks 8 --link 10Gbit,50us
  stoker exchange train.py --ranks 16 --hosts 2 --link 100Gbit,20us --gpu H100-SXM
  stoker exchange train.py --ranks 4 --link 1Gbit,100us --cpu --comm-allow split,compress"""


def main(argv: list[str]) -> int:
    """Prints the plan; returns the exit status.

    Raises:
        ConfigError: an option or a file has a wrong value.
        RunFolderError: there is no such run.
        TracingError: the program cannot be characterised.
    """
    ours, theirs = split_program(argv)
    parser = _parser()
    arguments = parser.parse_args(ours)
    given = [each for each in _PLANNED if getattr(arguments, each) != parser.get_default(each)]
    if not given and not theirs and is_run(arguments.program):
        return show_run(arguments.program, as_json=arguments.json)
    for name in ("ranks", "link"):
        if getattr(arguments, name) is None:
            parser.error(f"the following arguments are required: --{name}")
    hosts = arguments.ranks if arguments.hosts is None else arguments.hosts
    if arguments.ranks % hosts:
        raise ConfigError(
            f"`--hosts` must divide the {arguments.ranks} ranks evenly, got {hosts}; see `stoker exchange --help`"
        )
    machine = _rates() if arguments.cpu else _card(arguments.gpu)
    target = "cpu" if arguments.cpu else "cuda"
    batches = batches_of(
        arguments.program, arguments.module, theirs, arguments.hint, "stoker exchange", target
    )  # fmt: skip
    features = batches.step(batches.own)
    try:
        report = exchange(_question(arguments, features, hosts, machine))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if arguments.json:
        print_json(report)
    else:
        sys.stdout.write(render_exchange(report, style_for(sys.stdout, os.environ)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker exchange",
        usage="stoker exchange PROGRAM --ranks N --link RATE,LATENCY [options] [-- arguments of the program]\n"
        "       stoker exchange -m MODULE --ranks N --link RATE,LATENCY [options] [-- arguments of the program]\n"
        "       stoker exchange [--json] [RUN]",
        description="Plans how ranks exchange the gradients of a program, layer by layer, with no cluster at all; "
        "of a RUN it shows what that chose and measured.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--ranks", type=whole(1), metavar="N", help="processes that train together")
    add(
        "--link", type=_link, metavar="RATE,LATENCY",
        help="what a host sends to others in a second, and a message's latency (10Gbit,50us)",
    )  # fmt: skip
    add("--hosts", type=whole(1), metavar="N", help="hosts that the ranks are on (default: one for each rank)")
    device = parser.add_mutually_exclusive_group()
    device.add_argument("--gpu", default=_GPU, metavar="NAME", help=f"GPU of each rank (default: {_GPU})")
    device.add_argument(
        "--cpu", action="store_true", help="ranks compute on CPUs like this machine's, as `stoker perf calibrate` found"
    )
    add(
        "--comm-allow", type=_leaves, default=frozenset[Leave](), metavar="METHODS",
        help="consider what is not exact or not safe by itself: split, compress or both (split,compress)",
    )  # fmt: skip
    add(
        "--precision",
        choices=("fp32", "tf32", "fp16", "bf16", "fp8"),
        help="of products on a GPU; by default what the program uses",
    )
    add("--hint", action="append", default=[], metavar="NAME=VALUE", help="as of `stoker perf features`")
    add("--json", action="store_true", help="print it for programs")
    add("-m", dest="module", metavar="MODULE", help="a program that runs as `python -m MODULE`")
    add("program", metavar="PROGRAM", nargs="?", default="", help="script, module:function or features.json; or a run")
    return parser


def _link(text: str) -> tuple[float, float]:
    """Bytes/s and seconds."""
    rate, comma, latency = text.partition(",")
    found = _RATE.fullmatch(rate.strip())
    try:
        seconds = parse_seconds(latency) if latency.strip()[-1:].isalpha() else math.nan
    except ValueError:
        seconds = math.nan
    bits = float(found[1]) * _BITS[found[2]] if found else 0.0
    if not comma or not bits > 0 or not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"must be a rate and a latency such as 10Gbit,50us, got {text!r}")
    return bits / 8, seconds


def _leaves(text: str) -> frozenset[Leave]:
    words = [word.strip() for word in text.split(",")]
    if wrong := [word for word in words if word not in LEAVES]:
        raise argparse.ArgumentTypeError(f"must be {', '.join(LEAVES)} or both, got {wrong[0]!r}")
    return frozenset(cast("list[Leave]", words))


def _rates() -> Rates:
    try:
        return load(default_path())
    except RatesError as error:
        raise ConfigError(f"`--cpu` needs this machine's calibration: {error}") from None


def _card(name: str) -> Gpu:
    try:
        return gpu(name)
    except ValueError as error:
        raise ConfigError(f"{str(error).replace('`gpu`', '`--gpu`')}; see `stoker exchange --help`") from None


def _question(
    arguments: argparse.Namespace, features: StepFeatures, hosts: int, machine: Rates | Gpu
) -> ExchangeQuestion:
    ranks: int = arguments.ranks
    rate, latency_s = arguments.link
    if isinstance(machine, Rates):
        rates, own = machine, memory_bytes()[0] * hosts / ranks
        return ExchangeQuestion(
            features=features, rank=rank_of(features, rates), device=f"{rates.machine}, {rates.threads} threads",
            backend="gloo", ranks=ranks, hosts=hosts, rate=rate, latency_s=latency_s, fabric=_shared_memory(rates),
            allowed=arguments.comm_allow, memory_bytes=max(0.0, own - features.peak_bytes),
        )  # fmt: skip
    card = machine
    parts, _ = needs(features, Strategy(), ranks, precision=_kept(arguments.precision, features))
    return ExchangeQuestion(
        features=features, rank=Predictor().rank(features, card, precision=arguments.precision), device=card.name,
        backend="nccl", ranks=ranks, hosts=hosts, rate=rate, latency_s=latency_s,
        fabric=fabric_of(card, gpus=ranks // hosts), allowed=arguments.comm_allow,
        memory_bytes=max(0.0, capacity(card) - sum(parts.values())),
    )  # fmt: skip


def _kept(precision: str | None, features: StepFeatures) -> str:
    """Precision in which operands of products are kept."""
    return "bf16" if precision == "fp8" else precision or precision_of(features)


def _shared_memory(rates: Rates) -> Interconnect:
    """What processes of one host exchange over, as the calibration timed gloo's sums of two."""
    try:
        return probed(rates.all_reduce, 2, "the memory of the host")
    except ValueError:
        return stated(_MEMORY, 20e-6)
