"""`stoker perf calibrate`: measures this machine's CPU once, so that steps of programs can be predicted on it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker.cli.arguments import Parser, amount, whole
from stoker.cli.output import print_json
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.core.units import format_bytes, format_seconds
from stoker.perf.features.records import StepFeatures
from stoker.perf.machine.rates import Rates, RatesError, default_path, load, save
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table
from stoker.ui.terminal import is_terminal, style_for

if TYPE_CHECKING:
    from stoker.perf.machine.speed import Speed
    from stoker.perf.prediction.prediction import Prediction

_MOST_S = 600.0
_EPILOG = """\
examples:
  stoker perf calibrate                                          measures for a minute; keep the machine idle
  stoker perf features --target cpu --json step.json train.py
  stoker perf calibrate --predict step.json                      what the step will take here, and how sure that is"""


def main(argv: list[str]) -> int:
    """Measures and keeps the rates, or predicts with those that are kept; returns the exit status.

    Raises:
        ConfigError: an option has a wrong value, or a file cannot be used.
    """
    arguments = _parser().parse_args(argv)
    path = arguments.file or default_path()
    style = style_for(sys.stdout, os.environ)
    if arguments.predict is not None:
        return _predict(arguments.predict, path, style, as_json=arguments.json)
    require("torch", extra="torch")
    rates = _measured(arguments.seconds, arguments.threads)
    save(rates, path)
    if arguments.json:
        print_json(rates)
    else:
        print("\n".join(render_rates(rates, path, style)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker perf calibrate",
        description="Measures how fast this machine's CPU runs torch's operations, in about a minute, and keeps it. "
        "Steps of programs are then predicted from what they consist of.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=amount(1, _MOST_S, "seconds"), default=52.0, help="to measure for, about (default: 52)"
    )
    parser.add_argument("--threads", type=whole(1), help="of torch (default: as torch chooses)")
    parser.add_argument("--file", type=Path, help=f"where the rates are kept (default: {default_path()})")
    parser.add_argument(
        "--predict", type=Path, metavar="FEATURES",
        help="measure nothing; predict the step in this file, written by `stoker perf features --target cpu --json`",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _measured(seconds: float, threads: int | None) -> Rates:
    # Imported here: help must not wait for torch.
    from stoker.perf.machine.calibrating import calibrate
    from stoker.perf.machine.measuring import use_threads

    if threads is not None:
        use_threads(threads)
    line = is_terminal(sys.stderr)

    def tell(what: str, share: float) -> None:
        if line:
            sys.stderr.write(f"\r\x1b[Kmeasuring {what}: {share:.0%}")
            sys.stderr.flush()

    try:
        return calibrate(tell, seconds=seconds)
    finally:
        if line:
            sys.stderr.write("\r\x1b[K")


def _predict(features: Path, path: Path, style: Style, *, as_json: bool) -> int:
    from stoker.perf.machine.prediction import predict_step
    from stoker.perf.machine.speed import Speed

    try:
        step = StepFeatures.from_json(features.read_bytes())
        speed = Speed(load(path))
    except OSError as error:
        raise ConfigError(f"`{features}` cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"`{features}` holds no features ({error}); write them by: stoker perf features --target cpu --json FILE"
        ) from None
    except RatesError as error:
        raise ConfigError(str(error)) from None
    found = predict_step(step, speed)
    if as_json:
        print_json(found)
    else:
        print("\n".join(render_step(step, found, speed, style)))
    return 0 if found.tier != "refused" else 1


def render_rates(rates: Rates, path: Path, style: Style) -> list[str]:
    """What was measured, as lines: the best of each kind, and what that means."""
    products = [s for s in rates.samples if s.work.curve.startswith("matmul")]
    moved = [s for s in rates.samples if s.work.curve in ("add", "clone")]
    flops = max(s.work.flops / s.warm_s for s in products)
    largest = max(moved, key=lambda s: s.work.bytes)
    facts = [
        ("machine", f"{rates.machine}, {rates.threads} threads, torch {rates.torch}"),
        ("measured", f"{len(rates.samples):,} operations in {format_seconds(rates.took_s)}"),
        ("disturbed", f"{rates.disturbed_share:.1%} of the samples, by whatever else ran"),
        ("products", f"up to {flops / 1e9:.0f} GFLOP/s"),
        ("memory", f"{largest.work.bytes / largest.cold_s / 1e9:.1f} GB/s from memory, "
                   f"{max(s.work.bytes / s.warm_s for s in moved) / 1e9:.0f} from the caches "
                   f"(the last holds {format_bytes(rates.cache_bytes)})"),
        ("host", ", ".join(f"{1e6 * spent:.1f} us {phase}" for phase, spent in rates.host_s.items())
                 + " for each operation"),
    ]  # fmt: skip
    if rates.all_reduce:
        size, seconds = max(rates.all_reduce)
        facts.append(("all-reduce", f"{format_bytes(size)} over two processes by gloo in {format_seconds(seconds)}"))
    lines = [*render_facts(facts, style), "", f"kept in {path}"]
    if rates.disturbed_share > 0.1:
        lines.append("The machine was busy: measure again when it is quiet, or predictions will be too slow.")
    return lines


def render_step(step: StepFeatures, found: Prediction, speed: Speed, style: Style) -> list[str]:
    """A predicted step, as lines: its time, what it is spent on, and the operations that take most of it."""
    from stoker.perf.machine.prediction import predicted_lines

    if found.tier == "refused":
        return [f"refused: {reason}" for reason in found.reasons]
    lines = [
        style.paint(f"{step.name}: {format_seconds(found.seconds)} a step", 1)
        + f", {found.share:.0%} interval {format_seconds(found.low)} to {format_seconds(found.high)} ({found.tier})",
        f"{step.batch_size / found.seconds:,.0f} samples/s; {format_bytes(step.peak_bytes)} alive at most",
        "",
    ]
    parts = [(name, format_seconds(spent), f"{spent / found.seconds:.0%}") for name, spent in found.parts.items()]
    lines += [*render_table(("part", "time", "share"), parts, style, right=(1, 2)), ""]
    sums: dict[tuple[str, str], float] = {}
    for line in predicted_lines(step, speed):
        key = (line.operation.name, line.operation.phase)
        sums[key] = sums.get(key, 0.0) + line.seconds + line.host_s
    rows = [
        (name, phase, format_seconds(spent), f"{spent / found.seconds:.0%}")
        for (name, phase), spent in sorted(sums.items(), key=lambda item: -item[1])[:8]
    ]
    lines += render_table(("operation", "phase", "time", "share"), rows, style, right=(2, 3))
    return lines + [f"note: {reason}" for reason in found.reasons]
