"""`stoker serve plan`: how many services, which engine and how many, for a rate of requests and a 99th percentile."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from pathlib import Path

from stoker.cli.arguments import Parser, amount, duration, whole
from stoker.cli.output import print_json
from stoker.cli.serve.run import SERVED_BY
from stoker.core.errors import ConfigError
from stoker.core.extras import require
from stoker.core.units import format_count, format_seconds, parse_seconds
from stoker.records.runlog import RUNS_FOLDER, find_run, read_run
from stoker.run.serving.arrivals import at_rate, rate_of, read_arrivals, recorded_arrivals
from stoker.run.serving.planning import Demand, Planned, plan
from stoker.run.serving.sources import ENGINES, split_name
from stoker.serve.models.version import Costs
from stoker.sim.serving import Arrival
from stoker.ui.tables import render_table
from stoker.ui.terminal import style_for

_EPILOG = """\
Costs of batches and of the front end are measured on this machine, one engine at a time, or given. The queue is the
service's own, on a virtual clock: engines do not share cores there. A front end has one core: where requests take more
of it than there is, they go to several services in turn.
Requests arrive independently of each other, or as in the FILE of --arrivals: a line for each, with the time in seconds,
or TIME,SAMPLES; or CSV with a header that names `at_s`, and `samples` where they differ. A run folder of `stoker serve`
does as well: it keeps how many requests came in each second. With --rate as well, the same requests come closer
together or farther apart.
examples:
  stoker serve plan exported/ --rate 2000 --p99 20ms
  stoker serve plan exported/ --arrivals requests.csv --p99 20ms
  stoker serve plan exported/ --arrivals RUN --rate 4000 --p99 20ms
  stoker serve plan --costs 1=1.1ms,32=4.2ms --rate 2000 --p99 20ms"""


def main(argv: list[str]) -> int:
    """Shows the engines that are needed; 1 if no number that was tried does.

    Raises:
        ConfigError: an option is invalid.
        ServingError: the model does not load.
    """
    arguments = _parser().parse_args(argv)
    arrivals = _arrivals(arguments)
    demand = Demand(
        rate=arguments.rate or (rate_of(arrivals) if arrivals else 0.0), p99_s=arguments.p99, samples=arguments.samples,
        max_batch=arguments.max_batch,
    )  # fmt: skip
    costs, front_s, words = _costs(arguments)
    found = [plan(engine, each, demand, arguments.most, arrivals, front_s or 0.0) for engine, each in costs.items()]
    found.sort(key=lambda each: (each.services * (each.count or math.inf), each.costs[-1][1]))
    if arguments.json:
        print_json([_record(each, front_s) for each in found])
    else:
        _show(found, demand, arguments.most)
        print(f"\n{words}")
    return 0 if found[0].count is not None else 1


def _arrivals(arguments: argparse.Namespace) -> list[Arrival] | None:
    if arguments.arrivals is None:
        if arguments.served is not None:
            raise ConfigError("`--served` must come with a run folder in `--arrivals`, got none")
        if arguments.rate is None:
            raise ConfigError("`--rate` or `--arrivals` must be given; see `stoker serve plan --help`")
        return None
    if arguments.arrivals.is_dir() or Path(RUNS_FOLDER, arguments.arrivals).is_dir():
        folder = find_run(arguments.arrivals)
        found = recorded_arrivals(folder, read_run(folder).events, arguments.served, arguments.samples)
    elif arguments.served is not None:
        raise ConfigError(f"`--served` must come with a run folder in `--arrivals`, got {arguments.arrivals}")
    else:
        found = read_arrivals(arguments.arrivals, arguments.samples)
    return at_rate(found, arguments.rate) if arguments.rate is not None else found


def _costs(arguments: argparse.Namespace) -> tuple[dict[str, Costs], float | None, str]:
    """Costs of engines by kind, and of the front end for a request, with words; None where that is not known."""
    if (arguments.model is None) == (arguments.costs is None):
        raise ConfigError("`MODEL` or `--costs` must be given, one of both; see `stoker serve plan --help`")
    front_s, source = arguments.front, "--front"
    if arguments.costs is not None:
        costs, why = {"as given": arguments.costs}, "none is measured without MODEL"
    else:
        for module in SERVED_BY:
            require(module, extra="serve")
        from stoker.run.serving.measuring import measured  # imported here: costs that are given need no extra

        found = measured(
            split_name(arguments.model)[1], arguments.engine, arguments.threads, arguments.max_batch, arguments.samples
        )
        costs, why = found.costs, found.no_front
        if front_s is None and found.front is not None:
            front_s = found.front.binary_s if arguments.body == "binary" else found.front.json_s
            source = f"--body {arguments.body}"
    if front_s is None:
        return costs, None, f"The front end of a service, which has one core, is not counted: {why}; give --front TIME."
    return costs, front_s, (
        f"The front end of a service takes {format_seconds(front_s)} of its core for a request ({source}): "
        f"{1.0 / front_s:,.0f} requests/s at most."
    )  # fmt: skip


def _record(planned: Planned, front_s: float | None) -> dict[str, object]:
    return {
        "engine": planned.engine, "services": planned.services, "count": planned.count, "costs": planned.costs,
        "front_s": front_s,
        "p50_s": planned.trace.quantile_s(0.5), "p99_s": planned.trace.quantile_s(0.99),
        "refused": planned.trace.refused, "dropped": planned.trace.dropped,
        "requests": planned.requests, "reason": planned.reason,
        "mean_batch": sum(planned.trace.batches) / max(1, len(planned.trace.batches)),
    }  # fmt: skip


def _show(found: list[Planned], demand: Demand, most: int) -> None:
    best = found[0]
    promise = f"{demand.rate:g} requests/s with a 99th percentile of {format_seconds(demand.p99_s)}"
    if best.count is None:
        print(f"{promise}: not with {_words(best.services, most)} of any kind")
        for each in found:
            print(f"  {each.engine}: {each.reason}")
    else:
        print(f"{promise}: {_words(best.services, best.count)}, {best.engine}")
    rows = [
        (
            each.engine, str(each.count or f"over {most}"), format_seconds(each.trace.quantile_s(0.5)),
            format_seconds(each.trace.quantile_s(0.99)), f"{each.trace.refused + each.trace.dropped:,}",
            ", ".join(f"{samples}: {format_seconds(seconds)}" for samples, seconds in each.costs),
        )
        for each in found
    ]  # fmt: skip
    style = style_for(sys.stdout, os.environ)
    heading = ("engine", "engines", "p50", "p99", f"shed of {best.requests:,}", "costs of batches")
    print("\n".join(render_table(heading, rows, style, right=(1, 2, 3, 4))))


def _words(services: int, engines: int) -> str:
    count = format_count(engines, "engine")
    return count if services == 1 else f"{format_count(services, 'service')} with {count} each"


def _points(text: str) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [word.split("=") for word in text.split(",")]
        found = tuple((int(samples), parse_seconds(seconds)) for samples, seconds in pairs)
    except ValueError:
        found = ()
    if not found or any(samples < 1 or seconds <= 0.0 for samples, seconds in found):
        raise argparse.ArgumentTypeError(f"must be samples and times such as 1=1ms,32=4ms, got {text!r}")
    ordered = sorted(found)
    for (samples, seconds), (more, longer) in itertools.pairwise(ordered):
        if samples == more:
            raise argparse.ArgumentTypeError(f"must have one time for each number of samples, got two for {samples}")
        if longer < seconds:
            raise argparse.ArgumentTypeError(
                f"must have no shorter times for more samples, got {format_seconds(seconds)} for {samples} and "
                f"{format_seconds(longer)} for {more}"
            )
    return found


def _parser() -> Parser:
    parser = Parser(
        prog="stoker serve plan",
        description="Says how many services and engines keep a promise, by simulating the service's own queue.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="as in `stoker serve run`")
    add("--costs", type=_points, metavar="N=TIME,…", help="of batches, instead of a model")
    add("--rate", type=amount(1e-3, 1e7), metavar="N", help="requests a second")
    add("--arrivals", type=Path, metavar="FILE|RUN", help="when requests arrive (default: independently of each other)")
    add("--served", metavar="NAME", help="model whose requests RUN has, if it served several")
    add("--p99", type=duration("20ms"), required=True, metavar="TIME", help="99th percentile of answers")
    add("--samples", type=whole(1), default=1, metavar="N", help="of a request, if FILE does not say (default: 1)")
    add("--body", choices=("json", "binary"), default="json", help="how requests have their tensors (default: json)")
    add(
        "--front", type=duration("200us"), metavar="TIME",
        help="of a core that the front end takes for a request (default: measured, with MODEL)",
    )  # fmt: skip
    add("--engine", choices=("auto", *ENGINES), default="auto", help="only this one")
    add("--threads", type=whole(1, 256), default=1, metavar="N", help="of an engine (default: 1)")
    add("--max-batch", type=whole(1, 4096), default=32, metavar="N", help="most samples at once (default: 32)")
    add("--most", type=whole(1, 1024), default=32, metavar="N", help="engines to try (default: 32)")
    add("--json", action="store_true", help="print all figures as JSON")
    return parser
