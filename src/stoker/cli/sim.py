"""`stoker sim`: a cluster of jobs on a virtual clock, with and without the allocator."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from stoker.cli.arguments import Parser, amount, whole
from stoker.cli.output import print_json, write_text
from stoker.core.errors import ConfigError
from stoker.core.units import parse_seconds
from stoker.scale.cluster.gangs import DISCIPLINES, GangConfig
from stoker.sim.cluster.engine import MoveCosts
from stoker.sim.cluster.policies import SimPolicy, standard_policies
from stoker.sim.cluster.report import compare, gain_map
from stoker.sim.cluster.scenario import DAY_S, Scenario, demand_number
from stoker.sim.cluster.traces import SCHEMA, TRACE_FILES, find_trace, read_stragglers, read_trace
from stoker.sim.cluster.workload import ClusterMachines
from stoker.ui.cluster.sim_html import render_sim_page
from stoker.ui.cluster.sim_text import render_sim
from stoker.ui.tables import render_table
from stoker.ui.terminal import is_terminal, style_for

POLICIES = tuple(standard_policies())
BASELINE = "none"
_EPILOG = """\
TRACE is philly, v2023 or muri, whose files --traces DIR holds, or a CSV with a row for each job; --schema lists its
columns. Nothing runs: it is arithmetic on arrivals, GPUs, durations and the CPUs that the input of each job needs.
examples:
  stoker sim jobs.csv --nodes 8x8x64 --cpu-nodes 8x64       tables on the terminal
  stoker sim philly --traces DIR --html sim.html            the same as a page with plots
  stoker sim philly --traces DIR --policy jct --policy none --map
  stoker sim muri --traces DIR --cpu-scale 1.2 --speedup 2.2"""


def main(argv: list[str]) -> int:
    """Simulates a cluster; returns the exit status.

    Raises:
        ConfigError: an option has an invalid value, or the trace is not there.
        JobTableError: the trace cannot be read.
    """
    arguments = _parser().parse_args(argv)
    if arguments.schema:
        _show_schema()
        return 0
    if arguments.trace is None:
        raise ConfigError("`TRACE` must be philly, v2023, muri or a CSV file, got nothing; see `stoker sim --help`")
    traced = read_trace(find_trace(arguments.trace, arguments.traces))
    scenario = _scenario(arguments, "trace" if traced.need_per_gpu is not None else "goldminer")
    gangs = GangConfig(discipline=arguments.gangs, patience_s=arguments.patience)
    quotas = dict(arguments.quota)
    policies = standard_policies(gangs, floor_frac=arguments.floor, quotas=quotas)
    chosen = _chosen(arguments.policy, policies)
    focus = next((name for name in ("jct", *arguments.policy) if name in {each.name for each in chosen}), BASELINE)
    progress = _progress()
    try:
        cells = (
            gain_map(traced, scenario, policies, seed=arguments.seed, focus=focus, progress=progress)
            if arguments.map else []
        )  # fmt: skip
        report = compare(
            traced, scenario, chosen, samples=1 if scenario.jobs is None else arguments.samples, seed=arguments.seed,
            baseline=BASELINE, focus=focus, cells=cells, progress=progress,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(str(error)) from None
    finally:
        progress("")
    if arguments.json:
        print_json(report)
    elif arguments.html:
        write_text(render_sim_page(report), arguments.html, "--html")
    else:
        command = shlex.join(["stoker", "sim", *argv, "--html", "sim.html"])
        sys.stdout.write(render_sim(report, style_for(sys.stdout, os.environ), command))
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="stoker sim",
        description="Simulates a cluster's jobs with and without the allocator of CPUs, on a trace of jobs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    positive = amount(1e-6, 1e9, "a positive number")
    add("trace", metavar="TRACE", nargs="?", help="philly, v2023, muri or a CSV file")
    add("--traces", type=Path, metavar="DIR", help="folder with the files of the known traces")
    add("--schema", action="store_true", help="list the columns of a table of jobs")
    add("--nodes", type=_nodes, default=(8, 8, 64), metavar="NxGxC", help="N nodes with G GPUs and C CPUs "
        "(default: 8x8x64)")  # fmt: skip
    add("--cpu-nodes", type=_cpu_nodes, default=(0, 0), metavar="NxC", help="N nodes with C CPUs and no GPU")
    add("--policy", action="append", default=[], metavar="NAME",
        help=f"compare this policy with {BASELINE}; may be repeated: {', '.join(POLICIES)} (default: all)")  # fmt: skip
    add("--gangs", choices=DISCIPLINES, default="fifo", help="order in which jobs get GPUs (default: fifo)")
    add("--patience", type=_time, default=math.inf, metavar="TIME",
        help="no job starts before one that has waited so long for its GPUs (default: always backfill)")  # fmt: skip
    add("--floor", type=amount(0, 1), default=0.0, metavar="FRAC",
        help="part of its node's share that a job keeps under the allocator (default: 0)")  # fmt: skip
    add("--quota", type=_quota, action="append", default=[], metavar="USER=CPUS",
        help="CPUs that a user's jobs get first under the allocator; the rest is lent; may be repeated")  # fmt: skip
    add("--demand", type=_demand, metavar="NAME|CPUS",
        help="CPUs for each GPU at full speed: goldminer, synergy, trace, or a number (default: the trace's, else "
        "goldminer)")  # fmt: skip
    add("--cpu-scale", type=positive, default=1.0, metavar="F", help="factor on all demands (default: 1)")
    add("--speedup", type=positive, default=1.0, metavar="F", help="GPUs so many times as fast (default: 1)")
    add("--stragglers", type=_stragglers, default=1.0, metavar="F|pai",
        help="jobs with several GPUs take so many times as long; pai: as four jobs of Alibaba-PAI did, whose files "
        "--traces holds (default: 1)")  # fmt: skip
    add("--link-cpus", type=amount(0, 1e9), default=math.inf, metavar="N",
        help="remote CPUs whose batches a node's link carries (default: any)")  # fmt: skip
    add("--load", type=_load, metavar="F|trace",
        help="share of the GPUs that would be busy at full speed; trace: arrivals as they are (default: 0.9, for a "
        "table of jobs trace)")  # fmt: skip
    add("--jobs", type=_jobs, metavar="N|all", help="jobs of a sample (default: 500, for a table of jobs all)")
    add("--cut", type=_cut, metavar="TIME|none",
        help="longer durations are cut to this (default: 2d, for a table of jobs none)")  # fmt: skip
    add("--samples", type=whole(1, 1000), default=5, metavar="N", help="samples to take medians over (default: 5)")
    add("--seed", type=whole(0), default=0, metavar="N", help="of the first sample (default: 0)")
    add("--draw", choices=("window", "random"), default="window",
        help="a sample is jobs that followed each other, or any (default: window)")  # fmt: skip
    add("--map", action="store_true", help="also the gain over demand and load, which takes longer")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all figures as JSON")
    form.add_argument("--html", metavar="FILE", help="write one self-contained page; `-` prints it")
    return parser


def _sizes(count: int, text: str, example: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d{1,6}(x\d{1,6})*", text) or len(text.split("x")) != count:
        raise argparse.ArgumentTypeError(f"must be {count} whole numbers such as {example}, got {text!r}")
    return tuple(map(int, text.split("x")))


def _nodes(text: str) -> tuple[int, ...]:
    sizes = _sizes(3, text, "8x8x64")
    if 0 in sizes:
        raise argparse.ArgumentTypeError(f"must be nodes, GPUs and CPUs of at least 1, got {text!r}")
    return sizes


def _cpu_nodes(text: str) -> tuple[int, ...]:
    return _sizes(2, text, "8x64")


def _time(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a time such as 30min: {error}") from None


def _stragglers(text: str) -> float:
    """The factor; NaN for those of PAI."""
    return math.nan if text == "pai" else amount(1, 100, "pai or a number")(text)


def _quota(text: str) -> tuple[str, float]:
    user, equals, cpus = text.rpartition("=")
    if not equals or not cpus.isdigit():
        raise argparse.ArgumentTypeError(f"must be a user and a whole number of CPUs such as ann=128, got {text!r}")
    return user, float(cpus)


def _demand(text: str) -> str:
    if text not in ("goldminer", "synergy", "trace"):
        try:
            demand_number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be goldminer, synergy, trace or a positive number, got {text!r}"
            ) from None
    return text


def _load(text: str) -> float:
    """The load; NaN for that of the trace."""
    return math.nan if text == "trace" else amount(0.01, 100, "trace or a number")(text)


def _jobs(text: str) -> float:
    """The number of jobs; infinite for all."""
    return math.inf if text == "all" else whole(1)(text)


def _cut(text: str) -> float:
    return math.inf if text == "none" else _time(text)


def _scenario(arguments: argparse.Namespace, demand: str) -> Scenario:
    nodes, gpus, cpus = arguments.nodes
    cpu_nodes, cpu_node_cpus = arguments.cpu_nodes
    # A table of the user's own is taken as it is; a published trace is far too long and too large for most clusters.
    published = arguments.trace in TRACE_FILES
    load, jobs, cut_s = (0.9, 500, 2 * DAY_S) if published else (math.nan, math.inf, math.inf)
    load = load if arguments.load is None else arguments.load
    jobs = jobs if arguments.jobs is None else arguments.jobs
    cut_s = cut_s if arguments.cut is None else arguments.cut
    late = read_stragglers(arguments.traces) if math.isnan(arguments.stragglers) else (arguments.stragglers,)
    return Scenario(
        machines=ClusterMachines(nodes=nodes, gpus=gpus, cpus=cpus, cpu_nodes=cpu_nodes, cpu_node_cpus=cpu_node_cpus),
        demand=arguments.demand or demand,
        cpu_scale=arguments.cpu_scale,
        speedup=arguments.speedup,
        stragglers=late,
        load=None if math.isnan(load) else load,
        jobs=None if math.isinf(jobs) else int(jobs),
        cut_s=None if math.isinf(cut_s) else cut_s,
        draw=arguments.draw,
        costs=MoveCosts(link_cpus=arguments.link_cpus),
    )


def _chosen(names: list[str], policies: dict[str, SimPolicy]) -> list[SimPolicy]:
    """The baseline, and the named policies, or all."""
    for name in names:
        if name not in policies:
            raise ConfigError(f"`--policy` must be one of {', '.join(policies)}, got {name!r}")
    wanted = {BASELINE, *names} if names else set(policies)
    return [policy for name, policy in policies.items() if name in wanted]


def _progress() -> Callable[[str], None]:
    """Shows what is being simulated on a terminal's last line; nothing elsewhere."""
    stream = sys.stderr
    if not is_terminal(stream):
        return lambda text: None

    def show(text: str) -> None:
        stream.write(f"\r\x1b[K{text}")
        stream.flush()

    return show


def _show_schema() -> None:
    rows = [[name, "yes" if required else "no", about, rule] for name, required, about, rule in SCHEMA]
    style = style_for(sys.stdout, os.environ, width=200)
    print("\n".join(render_table(["column", "required", "what it is", "must be"], rows, style)))
