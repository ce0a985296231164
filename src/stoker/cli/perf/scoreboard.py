"""`stoker perf scoreboard`: how far predictions are from what others have published."""

from __future__ import annotations

import dataclasses
import json
import os
import sys

from stoker.cli.arguments import Parser
from stoker.perf.study.scoreboard import Scoreboard, scoreboard
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table
from stoker.ui.terminal import style_for


def main(argv: list[str]) -> int:
    """Shows the scoreboard; returns the exit status."""
    parser = Parser(
        prog="stoker perf scoreboard",
        description="Predicts published training throughputs from what they consist of, each by a calibration that has "
        "not seen its group, and shows how far off that is. Offline; needs no GPU.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args(argv)
    board = scoreboard()
    if arguments.json:
        print(json.dumps(dataclasses.asdict(board), indent=2))
    else:
        print("\n".join(render(board, style_for(sys.stdout, os.environ))))
    return 0


def render(board: Scoreboard, style: Style) -> list[str]:
    """The scoreboard as lines."""
    heading = ("left out of the calibration", "rows", "median error", "mean", "in 90 % interval", "width", "constant")
    rows = [
        (
            score.name,
            str(score.rows),
            _percent(score.median),
            _percent(score.mean),
            "-" if score.covered is None else _percent(score.covered),
            "-" if score.width is None else f"{score.width:.2f}x",
            _percent(score.constant),
        )
        for score in board.scores
    ]
    lines = render_table(heading, rows, style, right=range(1, len(heading)))
    lines += ["", style.paint("Median error by what was left out", 1)]
    for score in board.scores:
        groups = ", ".join(f"{group} {_percent(error)}" for group, error in score.groups.items())
        lines.append(f"{score.name}: {groups}")
    for name, errors in (("card", board.cards), ("number of GPUs", board.counts)):
        found = ", ".join(f"{group} {_percent(error)}" for group, error in errors.items())
        lines.append(f"one family left out, by {name}: {found}")
    lines += ["", style.paint("Agreement with another model's arithmetic (vTrain; no accuracy)", 1)]
    for agreement in board.agreements:
        groups = ", ".join(f"{group} {_percent(error)}" for group, error in agreement.groups.items())
        lines.append(f"{agreement.name}: {_percent(agreement.median)} in the median ({groups})")
    lines += ["", style.paint(f"{board.predicted:,} rows are predicted; not predicted", 1)]
    lines += [f"{count:>6,}  {reason}" for reason, count in board.left_out.items()]
    lines += ["", "width: upper end / lower end of the interval"]
    lines += ["constant: median error of FLOPs and one efficiency for all, calibrated on the same rows"]
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
