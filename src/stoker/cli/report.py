"""`stoker report [RUN]`: the report of a run as text, JSON or an HTML page."""

from __future__ import annotations

import argparse
import os
import sys

from stoker.cli.arguments import Parser, whole
from stoker.cli.output import print_json, write_text
from stoker.records.exchange_file import read_exchanges
from stoker.records.fitting_file import read_fits
from stoker.records.runlog import RUNS_FOLDER, Run, find_run, read_ranks, read_run
from stoker.ui.exchange.averaging_text import averages_of, render_averaging
from stoker.ui.exchange.run_text import render_exchange_runs
from stoker.ui.fitting.text import render_fits
from stoker.ui.report_html import render_html
from stoker.ui.report_text import render_text
from stoker.ui.serving.figures import ServedSummary, served_models
from stoker.ui.serving.html import render_served_html
from stoker.ui.serving.text import render_served
from stoker.ui.summary import summarise
from stoker.ui.terminal import style_for

_EPILOG = f"""\
RUN is a run folder, the name of one under `{RUNS_FOLDER}`, or `{RUNS_FOLDER}` itself for the latest in it.
examples:
  stoker report                              the latest run, on the terminal
  stoker report --html report.html           the same as a page with plots
  stoker report {RUNS_FOLDER}/NAME --json    its figures for other programs"""


def main(argv: list[str]) -> int:
    """Shows a report.

    Raises:
        RunFolderError: There is no such run.
        ConfigError: The page cannot be written.
    """
    arguments = _parser().parse_args(argv)
    folder = find_run(arguments.run)
    run = read_run(folder, arguments.rank)
    if served := served_models(run.events):
        return _show_served(run, served, arguments)
    summary = summarise(run, read_ranks(folder) if len(run.ranks) > 1 else ())
    if arguments.json:
        print_json(summary)
    elif arguments.html:
        write_text(render_html(run, summary, read_exchanges(folder), read_fits(folder)), arguments.html, "--html")
    else:
        style = style_for(sys.stdout, os.environ)
        sys.stdout.write(render_text(summary, style))
        for averages in averages_of(run.events):
            sys.stdout.write("\n" + render_averaging(averages, style))
        exchanges = render_exchange_runs(read_exchanges(folder), style)
        fits = render_fits(read_fits(folder), style)
        sys.stdout.write("".join(f"\n{text}" for text in (exchanges, fits) if text))
    return 0


def _show_served(run: Run, served: list[ServedSummary], arguments: argparse.Namespace) -> int:
    """The report of a service, which has no loaders."""
    if arguments.json:
        print_json(served)
    elif arguments.html:
        write_text(render_served_html(run, served), arguments.html, "--html")
    else:
        sys.stdout.write(render_served(served, style_for(sys.stdout, os.environ)))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker report",
        description="Shows where the time of a run went, and what to do next.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", nargs="?", help="which run (default: the latest)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all figures as JSON")
    form.add_argument("--html", metavar="FILE", help="write one self-contained page; `-` prints it")
    parser.add_argument("--rank", type=whole(0), metavar="N", help="report this rank (default: the lowest)")
    return parser
