"""`stoker perf fleet`: where the time of many jobs goes, who gains from porting, what an upgrade buys."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, whole
from stoker.cli.output import print_json, write_text
from stoker.core.errors import ConfigError
from stoker.perf.fleet.hardware_file import read_hardware
from stoker.perf.fleet.jobs import ARCHITECTURE, ARCHITECTURE_RULE, JOB, NUMBERS, Fleet
from stoker.perf.fleet.reading import read_fleet, write_csv
from stoker.perf.fleet.report import examine
from stoker.perf.fleet.synthetic import synthetic_fleet
from stoker.perf.hardware import PAPER_TESTBED
from stoker.ui.fleet_html import render_fleet_page
from stoker.ui.fleet_text import render_fleet
from stoker.ui.tables import render_table
from stoker.ui.terminal import style_for

_EPILOG = """\
JOBS is a table with a row for each job, as CSV, or .parquet where pyarrow is installed; `--schema` lists its columns.
Some published traces are read as they are, as far as their columns go: Muri, Philly, Alibaba's GPU trace of 2023.
examples:
  stoker perf fleet jobs.csv                                    tables on the terminal
  stoker perf fleet jobs.csv --html fleet.html                  the same as a page with plots
  stoker perf fleet jobs.csv --hardware ours.toml --overlap full
  stoker perf fleet --synthetic 20000 --seed 0 --write jobs.csv"""


def main(argv: list[str]) -> int:
    """Shows the report on a fleet; returns the exit status.

    Raises:
        ConfigError: an option has an invalid value.
        JobTableError: the table cannot be read.
    """
    arguments = _parser().parse_args(argv)
    if arguments.schema:
        _show_schema()
        return 0
    fleet = _fleet(arguments)
    if arguments.write:
        write_csv(fleet, Path(arguments.write))
        print(f"wrote {arguments.write}: {len(fleet):,} synthetic jobs, none of which ever ran", file=sys.stderr)
    hardware = read_hardware(Path(arguments.hardware)) if arguments.hardware else PAPER_TESTBED
    report = examine(fleet, hardware, arguments.overlap)
    if arguments.json:
        print_json(report)
    elif arguments.html:
        write_text(render_fleet_page(report), arguments.html, "--html")
    else:
        command = shlex.join(["stoker", "perf", "fleet", *argv, "--html", "fleet.html"])
        sys.stdout.write(render_fleet(report, style_for(sys.stdout, os.environ), command))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker perf fleet",
        description="Shows where the time of many jobs goes, who gains from another architecture, what upgrades buy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", metavar="JOBS", nargs="?", help="the table of jobs")
    parser.add_argument(
        "--synthetic", type=whole(1), metavar="N", help="generate N synthetic jobs from the published marginals instead"
    )
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the synthetic jobs (default: 0)")
    parser.add_argument("--write", metavar="FILE", help="write the synthetic jobs as a table")
    parser.add_argument("--hardware", metavar="FILE", help="TOML of the servers; unnamed values are the study's")
    parser.add_argument(
        "--overlap", choices=("none", "full"), default="none", help="parts of a step add up, or overlap (default: none)"
    )
    parser.add_argument("--schema", action="store_true", help="list the columns of a table of jobs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all figures as JSON")
    form.add_argument("--html", metavar="FILE", help="write one self-contained page; `-` prints it")
    return parser


def _fleet(arguments: argparse.Namespace) -> Fleet:
    if (arguments.jobs is None) == (arguments.synthetic is None):
        given = "neither" if arguments.jobs is None else "both"
        raise ConfigError(f"`JOBS` or `--synthetic` must be given, got {given}; see stoker perf fleet --help")
    if arguments.jobs is not None:
        if arguments.write:
            raise ConfigError("`--write` must go with `--synthetic`: it writes synthetic jobs")
        return read_fleet(Path(arguments.jobs))
    return synthetic_fleet(arguments.synthetic, arguments.seed)


def _show_schema() -> None:
    rows = [
        [JOB, "no", "name of the job", "text"],
        [ARCHITECTURE, "yes", "how the job's GPUs share the work", ARCHITECTURE_RULE],
        *([each.name, "yes" if each.required else "no", each.about, each.rule] for each in NUMBERS),
    ]
    style = style_for(sys.stdout, os.environ, width=200)
    print("\n".join(render_table(["column", "required", "what it is", "must be"], rows, style)))
