"""The whole Philly trace on 640 simulated GPUs, one core, a policy at a time: seconds and memory."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace

from benchmarks.support.clusters import machines, outcome, philly, scenario
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.sim.cluster.policies import standard_policies

BAR = Bar(
    "sim_speed",
    "82,247 Philly jobs on 640 GPUs within 20 s of one core's time for each policy, within 600 MB",
    headline=("slowest_s", "peak_mb"),
)


def measure(options: Options) -> Report:
    """Each policy once: the processor's time, since the machine may be shared."""
    report = Report()
    traced = philly(report)
    wide = machines(80 * 64, nodes=80)
    scene = replace(scenario(0), machines=wide, jobs=options.pick(None, 20_000, 500), max_gpus=None, cut_s=None)
    table = scene.table(traced, 0)
    names = options.pick(("none", "max-min", "jct", "jct-known"), ("none", "jct"), ("jct",))
    took: dict[str, float] = {}
    rows: list[list[str]] = []
    for name in names:
        begun = time.process_time()
        found = outcome(scene, table, standard_policies()[name])
        took[name] = time.process_time() - begun
        print(f"  {name}: {took[name]:.1f} s", flush=True)
        rows.append([name, number(took[name], 1), f"{found.events:,}", number(found.mean_jct_s / 3600, 1)])
    report.table(["policy", "processor s", "events", "mean JCT, h"], rows)
    report.note(f"{len(table):,} jobs on {wide.total_gpus} GPUs, {wide.total_cpus:,} vCPUs")
    # Smaller sizes are held to the same rate.
    slowest = max(took.values()) * 82_247 / len(table)
    report.at_most("slowest_s", "slowest policy, processor s for 82,247 jobs", [slowest], 20.0, 1)
    report.at_most(
        "peak_mb", "memory at its peak, MB", [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3], 600.0, 0
    )
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
