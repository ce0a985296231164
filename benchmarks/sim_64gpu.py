"""What the allocator gains on 64 simulated GPUs over jobs that have their node's CPUs alone.

Nothing runs: the figures are the same on every machine. Samples are 500 Philly jobs that followed each other, of at
most 8 GPUs, cut at two days, FIFO with backfill; demand is made up after GoldMiner. Durations are unknown to the
policy, whose constants were chosen on other samples.
"""

from __future__ import annotations

import sys
from statistics import median

import numpy as np

from benchmarks.support.clusters import FIRST_SEED, outcome, philly, scenario
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.sim.cluster.outcome import ClusterOutcome
from stoker.sim.cluster.policies import standard_policies
from stoker.sim.cluster.report import gain_map

BAR = Bar(
    "sim_64gpu",
    "on 8 x (8 GPUs, 64 vCPUs), over none: completion times 2.5x with 512 vCPUs added, 1.5x with none added; "
    "utilisation 2.1x with 1,536; nowhere on the map of demand and load below 0.98x",
    headline=("jct_512", "jct_0", "utilisation_1536", "map_least"),
)
STRETCH = 3.2
_ADDED = (0, 512, 1536)


def measure(options: Options) -> Report:
    """All samples under all policies; then the map."""
    report = Report()
    traced = philly(report)
    policies = standard_policies()
    names = options.pick(
        tuple(policies), ("none", "greedy", "max-min", "jct", "unlimited"), ("none", "jct", "unlimited")
    )
    samples, jobs = options.pick(20, 8, 1), options.pick(500, 500, 60)
    report.note(f"{samples} samples of {jobs} jobs, seeds from {FIRST_SEED}; gains over none, medians")
    gains: dict[tuple[str, int], list[float]] = {}
    uses: dict[tuple[str, int], list[float]] = {}
    for seed in range(FIRST_SEED, FIRST_SEED + samples):
        for added in _ADDED:
            scene = scenario(added, jobs)
            table = scene.table(traced, seed)
            found: dict[str, ClusterOutcome] = {name: outcome(scene, table, policies[name]) for name in names}
            for name, each in found.items():
                gains.setdefault((name, added), []).append(found["none"].mean_jct_s / each.mean_jct_s)
                uses.setdefault((name, added), []).append(each.utilisation_frac / found["none"].utilisation_frac)
    head = ["policy", *(f"JCT +{added:,}" for added in _ADDED), *(f"utilisation +{added:,}" for added in _ADDED)]
    report.table(
        head,
        [
            [name, *(number(median(table[name, added])) for table in (gains, uses) for added in _ADDED)]
            for name in names
        ],
    )
    report.at_least("jct_512", "mean completion time, 512 vCPUs added", gains["jct", 512], 2.5)
    report.at_least("jct_0", "mean completion time, none added", gains["jct", 0], 1.5)
    report.at_least("utilisation_1536", "GPUs that compute, 1,536 vCPUs added", uses["jct", 1536], 2.1)
    stretch = "reached" if median(gains["jct", 512]) >= STRETCH else "not reached"
    report.note(
        f"stretch of {STRETCH}x with 512 added: {stretch}; "
        f"utilisation with CPUs without limit: {median(uses['unlimited', 1536]):.2f}x, the most there is"
    )
    report.figure("utilisation_unlimited", median(uses["unlimited", 1536]))
    _map(report, options)
    return report


def _map(report: Report, options: Options) -> None:
    traced = philly(report)
    demands = options.pick((0.5, 1.0, 2.0, 3.0, 5.0, 8.0), (0.5, 2.0, 8.0), (2.0,))
    loads = options.pick((0.3, 0.6, 0.9, 1.2), (0.3, 0.9), (0.9,))
    cells = gain_map(
        traced, scenario(0, options.pick(500, 300, 40)), standard_policies(), demands=demands, loads=loads,
        samples=options.pick(5, 3, 1), seed=FIRST_SEED,
    )  # fmt: skip
    found = {(cell.demand, cell.load): cell.jct_gain for cell in cells}
    report.table(
        ["demand / supply", *(f"load {load:g}" for load in loads)],
        [[f"{demand:g}", *(number(found[demand, load]) for load in loads)] for demand in demands],
    )
    values = np.array(list(found.values()))
    report.figure("map_most", float(values.max()))
    report.at_least("map_least", "least cell of the map, none added", [float(values.min())], 0.98)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
