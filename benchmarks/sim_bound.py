"""How far the allocator is from what no policy can beat, durations known. Nothing runs: the same on every machine."""

from __future__ import annotations

import sys
from dataclasses import replace

from benchmarks.support.clusters import FIRST_SEED, machines, outcome, philly, scenario
from benchmarks.support.harness import Bar, Options, Report, run
from stoker.sim.cluster.bounds import lp_bound_s, squashed_bound_s
from stoker.sim.cluster.engine import MoveCosts
from stoker.sim.cluster.policies import standard_policies
from stoker.sim.cluster.scenario import Scenario

BAR = Bar(
    "sim_bound",
    "durations known: 0.90 of CPUs without limit where these suffice, 0.85 of the bound by a linear program where CPUs "
    "alone are four times short",
    headline=("of_unlimited", "of_bound"),
)


def measure(options: Options) -> Report:
    """Both, on samples of Philly."""
    report = Report()
    traced = philly(report)
    policies = standard_policies()
    seeds = range(FIRST_SEED, FIRST_SEED + options.pick(10, 5, 1))
    enough: list[float] = []
    for seed in seeds:
        # Full speed of all GPUs takes 25 vCPUs each on average, of which these machines have 32.
        scene = scenario(1536, options.pick(500, 300, 60))
        table = scene.table(traced, seed)
        found = {name: outcome(scene, table, policies[name]).mean_jct_s for name in ("unlimited", "jct-known")}
        enough.append(found["unlimited"] / found["jct-known"])
    bounds: list[float] = []
    squashed: list[float] = []
    for seed in seeds:
        scene = _short(options.pick(150, 150, 40))
        table = scene.table(traced, seed)
        bound = lp_bound_s(table, scene.machines, options.pick(100, 60, 20))
        found_s = outcome(scene, table, policies["jct-known"]).mean_jct_s
        bounds.append(max(bound, squashed_bound_s(table, scene.machines)) / found_s)
        squashed.append(squashed_bound_s(table, scene.machines) / found_s)
    report.note(f"{len(seeds)} samples, seeds from {FIRST_SEED}; starts and drains cost time, bounds know none")
    report.figure("of_squashed", sorted(squashed)[len(squashed) // 2])
    report.at_least("of_unlimited", "unlimited CPUs over known durations, 1,536 vCPUs added", enough, 0.90)
    report.at_least("of_bound", "the larger bound over known durations, CPUs 4x short", bounds, 0.85)
    return report


def _short(jobs: int) -> Scenario:
    """As many GPUs as jobs could want at once, and a quarter of the vCPUs that full speed takes at load 0.9."""
    scene = scenario(0, jobs)
    # At load 0.9 of 64 GPUs full speed takes 58 x 25 vCPUs: a quarter is 363. The GPUs are many, so that none waits.
    many = replace(machines(0), nodes=64, cpus=6)
    return replace(scene, machines=many, load=0.9 / 8, costs=MoveCosts(), demand="goldminer")


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
