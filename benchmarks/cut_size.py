"""The cut follows bytes and seconds: what expands stays, what shrinks moves, and no other cut is better.

By predicted value, on graphs written by hand or drawn at random: their times and sizes are given, so that the figures
are the same on every machine. And really run: every cut of three small programs, beside the one chosen for them.
"""

from __future__ import annotations

import sys
import time

from benchmarks.programs.dataflows import Dataflow, drawn, enumerate_cuts
from benchmarks.programs.executed_cuts import programs, try_every_cut
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.core.units import format_bytes, format_seconds
from stoker.graph.choice.cut import Prices, choose, value_of
from stoker.graph.dataflow import Cut, Graph

BAR = Bar(
    "cut_size",
    "an expanding prefix stays, a shrinking one moves, the chosen cut is the best of all",
    headline=("moved_expanding", "moved_shrinking", "worst_share", "executed_share", "maximal_share"),
)
BANDWIDTH_BYTES_PER_S = (5e7, 5e8, 5e9, 5e10)
"""From a slow network to memory."""


def expanding() -> Graph:
    """A class index for each pixel becomes a vector of 100: the model takes 100 times the bytes."""
    flow = Dataflow(step_s=50e-3)
    labels = flow.leaf(400_000)
    flow.model(flow.call("one_hot", labels, seconds=3e-3, size_bytes=100 * 400_000))
    return flow.graph


def shrinking() -> Graph:
    """Photographs are normalised and made smaller before the model takes them."""
    flow = Dataflow(step_s=50e-3)
    images = flow.leaf(38_000_000)
    scaled = flow.call("div", images, seconds=8e-3, size_bytes=4 * 38_000_000)
    smaller = flow.call("interpolate", scaled, seconds=5e-3, size_bytes=9_600_000)
    flow.model(smaller)
    return flow.graph


def recommender() -> Graph:
    """Columns of a table: dear hashes of a few bytes each, and a one_hot that inflates one of them."""
    flow = Dataflow(step_s=20e-3)
    table = flow.leaf(3_300_000)
    hashed: list[int] = []
    for _ in range(26):
        column = flow.call("select", table, seconds=2e-6, size_bytes=32_768, view=True)
        hashed.append(flow.call("remainder", column, seconds=150e-6, size_bytes=65_536))
    wide = flow.call("one_hot", hashed[0], seconds=4e-3, size_bytes=65_536 * 1000)
    flow.model(*hashed, wide)
    return flow.graph


MADE = {"expanding": expanding, "shrinking": shrinking, "recommender": recommender}
"""Graphs written by hand."""


def measure(options: Options) -> Report:
    """The graphs written by hand, then those drawn."""
    report = Report()
    report.note("written by hand and drawn: by predicted value, times and sizes are given; executed: measured")
    _by_hand(report)
    _every_cut(report, options)
    _executed(report, options)
    _larger(report, options)
    return report


def _by_hand(report: Report) -> None:
    prices = Prices(bytes_per_s=5e9)
    cuts = {name: choose(make(), prices) for name, make in MADE.items()}
    report.table(
        ["graph, at 5 GB/s", "nodes moved", "sent", "saved a step", "first that stays, and why"],
        [_row(name, cut) for name, cut in cuts.items()],
    )
    report.at_most("moved_expanding", "one_hot x 100: nodes moved", [len(cuts["expanding"].moved)], 0, 0)
    report.at_least(
        "moved_shrinking", "div, interpolate to a sixteenth: nodes moved", [len(cuts["shrinking"].moved)], 2, 0
    )
    graph = recommender()
    everything = [node.number for node in graph.nodes if not node.state]
    share = value_of(graph, everything, prices) / value_of(graph, cuts["recommender"].moved, prices)
    report.at_most(
        "maximal_share", "recommender: value of the maximal cut, as a share of the chosen one's", [share], 1.0
    )


def _row(name: str, cut: Cut) -> list[str]:
    why = next(iter(cut.stayed.values()), "")
    return [name, str(len(cut.moved)), format_bytes(cut.boundary_bytes), format_seconds(cut.saved_s), why]


def _every_cut(report: Report, options: Options) -> None:
    """Small graphs, each at each bandwidth: the chosen cut beside the best of all."""
    shares: list[float] = []
    tried = empty = 0
    for seed in range(options.pick(300, 60, 5)):
        graph = drawn(seed, 3 + seed % 10)
        cuts = list(enumerate_cuts(graph))
        for bandwidth in BANDWIDTH_BYTES_PER_S:
            prices = Prices(bytes_per_s=bandwidth, min_saving_frac=0.0)
            best_s = max(value_of(graph, cut, prices) for cut in cuts)
            tried += len(cuts)
            empty += best_s == 0.0
            # Where it is best to move nothing, anything else is worth less than nothing.
            chosen_s = value_of(graph, choose(graph, prices).moved, prices)
            shares.append(chosen_s / best_s if best_s else 1.0 + chosen_s)
    report.note(
        f"{len(shares)} random graphs and bandwidths, {tried:,} cuts tried; for {empty} it is best to move nothing"
    )
    report.at_least("worst_share", "worst value of a chosen cut, as a share of the best of all", [min(shares)], 0.95, 3)


def _executed(report: Report, options: Options) -> None:
    """Every cut of small programs, really run."""
    few = programs()[: options.pick(3, 3, 1)]
    found = [try_every_cut(program, options.rounds, options.pick(40, 12, 3)) for program in few]
    report.table(
        ["program, each cut run", "cuts", "calls moved", "whole", "chosen", "best of all"],
        [
            [one.name, str(one.cuts), str(one.chosen), *map(format_seconds, (one.whole_s, one.chosen_s, one.best_s))]
            for one in found
        ],
    )
    shares = [one.share for one in found]
    report.at_least(
        "executed_share", "a step with the best cut / with the chosen one, worst program", [min(shares)], 0.95, 3
    )


def _larger(report: Report, options: Options) -> None:
    """How long choosing takes."""
    prices = Prices(bytes_per_s=5e9)
    rows: list[list[str]] = []
    for nodes in options.pick((30, 100, 300, 1000), (30, 100, 300), (30,)):
        graph = drawn(nodes, nodes)
        took: list[float] = []
        for _ in range(options.rounds):
            begun = time.perf_counter()
            choose(graph, prices)
            took.append(1e3 * (time.perf_counter() - begun))
        rows.append([str(nodes), number(min(took), 1), number(max(took), 1)])
        report.figure(f"choose_{nodes}_ms", min(took))
    report.table(["nodes", "ms to choose, lowest", "highest"], rows)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
