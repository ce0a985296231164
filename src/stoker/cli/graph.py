"""`stoker graph [RUN]`: what was moved out of a run's steps into data workers, as text, a picture, or JSON."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, whole
from stoker.cli.output import json_of, write_text
from stoker.core.errors import RunFolderError
from stoker.core.units import format_count
from stoker.records.events import CutChosen
from stoker.records.runlog import RUNS_FOLDER, Run, find_run, read_run
from stoker.ui.cuts import headline_cut, latest_cuts
from stoker.ui.graph_svg import render_svg
from stoker.ui.graph_text import render_graph
from stoker.ui.loaders import last_openings
from stoker.ui.report_text import Style
from stoker.ui.terminal import style_for

_FORMATS = ("text", "svg", "json")
_EPILOG = f"""\
RUN is a run folder, the name of one under `{RUNS_FOLDER}`, or `{RUNS_FOLDER}` itself for the latest in it.
A variant is a kind of step: training, evaluation, a last short batch.
examples:
  stoker graph                     the latest run, on the terminal
  stoker graph -o cut.svg          the same as a picture, for a browser
  stoker graph NAME --loader 1     another loader of the program"""


def main(argv: list[str]) -> int:
    """Shows a cut.

    Raises:
        RunFolderError: There is no such run, loader or variant, or no cut in it.
        ConfigError: The file cannot be written.
    """
    arguments = _parser().parse_args(argv)
    run = read_run(find_run(arguments.run), arguments.rank)
    cuts = latest_cuts(run.events)
    cut = _choose(run, cuts, arguments.loader, arguments.variant)
    form = arguments.format or _format_of(arguments.output)
    style = style_for(sys.stdout, os.environ) if arguments.output == "-" else Style()
    write_text(_render(run, cut, cuts, form, style), arguments.output, "-o")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker graph",
        description="Shows the calls of a step: moved to data workers, staying by choice, or stateful, and why.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="which run (default: the latest)")
    parser.add_argument(
        "--loader", type=whole(0), metavar="N", help="of this loader (default: of the one that gains most)"
    )
    parser.add_argument(
        "--variant", type=whole(0), metavar="N", help="of this kind of step (default: as for the loader)"
    )
    parser.add_argument("--format", choices=_FORMATS, help="how to show it (default: as FILE ends, else text)")
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="write to this file; `-` prints (default)")
    parser.add_argument("--rank", type=whole(0), metavar="N", help="of this rank (default: the lowest)")
    return parser


def _choose(run: Run, cuts: list[CutChosen], loader: int | None, variant: int | None) -> CutChosen:
    """The requested cut."""
    if not cuts:
        raise RunFolderError(
            f"`{run.folder}` must have a cut to show, and has none: {_why_none(run)}", folder=str(run.folder)
        )
    of_loader = [cut for cut in cuts if loader in (None, cut.loader)]
    if not of_loader:
        known = ", ".join(map(str, sorted({cut.loader for cut in cuts})))
        raise RunFolderError(f"`--loader` must be one with a cut ({known}), got {loader}", folder=str(run.folder))
    of_variant = [cut for cut in of_loader if variant in (None, cut.variant)]
    chosen = headline_cut(of_variant)
    if chosen is None:
        known = ", ".join(map(str, sorted({cut.variant for cut in of_loader})))
        raise RunFolderError(f"`--variant` must be one that was recorded ({known}), got {variant}")
    return chosen


def _why_none(run: Run) -> str:
    """Why the run has no cut, and what to do."""
    openings = last_openings(run)
    program = f"stoker run {shlex.join(run.header.argv) or 'train.py'}"
    if run.header.config.get("cut") == "off":
        return f"it ran with `--cut off`; run it without: {program}"
    if not openings:
        return f"its program iterated over no loader; `stoker explain {run.folder}` says what was seen"
    if all(opened.tier == "stock" for opened in openings):
        return f"its loaders are left to torch; `stoker explain {run.folder}` says why"
    return f"it took too few steps to record one, or is of an older stoker; let it run for longer: {program}"


def _format_of(output: str) -> str:
    suffix = Path(output).suffix[1:].lower()
    return suffix if suffix in _FORMATS else "text"


def _render(run: Run, cut: CutChosen, cuts: list[CutChosen], form: str, style: Style) -> str:
    site = next((opened.site for opened in last_openings(run) if opened.loader == cut.loader), "")
    if form == "json":
        return json_of(cut)
    if form == "svg":
        return render_svg(cut, site=site)
    return render_graph(cut, style, site=site, more=_others(cut, cuts))


def _others(shown: CutChosen, cuts: list[CutChosen]) -> str:
    """The run's other cuts, and how to see them."""
    others = [
        f"--loader {cut.loader} --variant {cut.variant} ({cut.outcome})"
        for cut in cuts
        if (cut.loader, cut.variant) != (shown.loader, shown.variant)
    ]
    if not others:
        return ""
    listed = ", ".join(others[:8]) + (f" and {len(others) - 8} more" if len(others) > 8 else "")
    return f"{format_count(len(others), 'other cut')} in this run: {listed}"
