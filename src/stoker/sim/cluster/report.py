"""Policies side by side on samples of a trace, and the map of the gain over demand and load: records for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stoker.core.errors import MissingExtraError
from stoker.records.cluster import GainCell, JctCurve, MeanBound, PolicyRow, SimReport, UseSeries
from stoker.scale.cluster.gangs import CAUSES
from stoker.sim.cluster.bounds import lp_bound_s, squashed_bound_s
from stoker.sim.cluster.engine import simulate_cluster
from stoker.sim.cluster.outcome import ClusterOutcome
from stoker.sim.cluster.policies import SimPolicy
from stoker.sim.cluster.scenario import Scenario
from stoker.sim.cluster.traces import TracedJobs
from stoker.sim.cluster.workload import JobTable

LP_MOST_JOBS = 400
"""The linear program of a larger sample takes minutes."""
MAP_DEMANDS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Demand over supply of the map: CPUs for full speed of all GPUs over those of their nodes."""
MAP_LOADS = (0.3, 0.6, 0.9, 1.2)
_SAID: Callable[[str], None] = lambda text: None  # noqa: E731 - the quiet default of a callback


def compare(
    traced: TracedJobs,
    scenario: Scenario,
    policies: Sequence[SimPolicy],
    *,
    samples: int = 5,
    seed: int = 0,
    baseline: str = "none",
    focus: str = "jct",
    cells: Sequence[GainCell] = (),
    progress: Callable[[str], None] = _SAID,
) -> SimReport:
    """All policies on the same samples.

    Args:
        traced: the jobs of a trace.
        scenario: what is assumed besides.
        policies: to compare; the baseline is among them.
        samples: drawn with the seeds from ``seed`` on.
        seed: of the first sample.
        baseline: the policy that gains are over.
        focus: the policy that the report is about.
        cells: of the map, if one was made.
        progress: called with a line before each sample.

    Raises:
        ValueError: no job fits, or the trace lacks the demand.
    """
    begun_s = time.monotonic()
    tables = [scenario.table(traced, seed + number) for number in range(samples)]
    outcomes: dict[str, list[ClusterOutcome]] = {policy.name: [] for policy in policies}
    for number, table in enumerate(tables):
        progress(f"sample {number + 1} of {samples}")
        for policy in policies:
            outcomes[policy.name].append(
                simulate_cluster(table, scenario.machines, policy, scenario.costs, spread=scenario.spread)
            )
    bounds, notes = _bounds(tables, scenario)
    machines = scenario.machines
    return SimReport(
        name=traced.name,
        jobs=len(tables[0]),
        samples=samples,
        gpus=machines.total_gpus,
        cpus=machines.total_cpus,
        added_cpus=machines.added_cpus,
        baseline=baseline,
        focus=focus,
        assumptions=scenario.assumptions(traced),
        policies=[_row(policy, outcomes[policy.name], outcomes[baseline]) for policy in policies],
        bounds=bounds,
        curves=[_curve(name, found) for name, found in outcomes.items()],
        series=[_series(name, found[0]) for name, found in outcomes.items()],
        cells=list(cells),
        notes=notes,
        seconds=time.monotonic() - begun_s,
    )


def gain_map(
    traced: TracedJobs,
    scenario: Scenario,
    policies: Mapping[str, SimPolicy],
    *,
    demands: Sequence[float] = MAP_DEMANDS,
    loads: Sequence[float] = MAP_LOADS,
    samples: int = 3,
    seed: int = 0,
    baseline: str = "none",
    focus: str = "jct",
    progress: Callable[[str], None] = _SAID,
) -> list[GainCell]:
    """The gain of a policy over demand and load: the scenario's demand is scaled, its machines stay."""
    cells: list[GainCell] = []
    for demand in demands:
        for load in loads:
            progress(f"map: demand {demand:g}, load {load:g}")
            gains = list(_gains(traced, scenario, policies, demand, load, range(seed, seed + samples), baseline, focus))
            cells.append(GainCell(demand=demand, load=load, jct_gain=float(np.median(gains))))
    return cells


def _gains(
    traced: TracedJobs,
    scenario: Scenario,
    policies: Mapping[str, SimPolicy],
    demand: float,
    load: float,
    seeds: Iterable[int],
    baseline: str,
    focus: str,
) -> Iterable[float]:
    machines = scenario.machines
    for seed in seeds:
        table = replace(scenario, load=load).table(traced, seed)
        # Demand is weighed by the GPU time that it is asked for.
        weight = table.gpus * table.duration_s
        asked = float((table.need_cpus / table.gpus * weight).sum() / weight.sum())
        factor = demand * machines.share_cpus / asked
        scaled = replace(table, widths=table.widths * factor, slopes=table.slopes / factor)
        means = [
            simulate_cluster(scaled, machines, policies[name], scenario.costs, spread=scenario.spread).mean_jct_s
            for name in (baseline, focus)
        ]
        yield means[0] / means[1]


def _bounds(tables: Sequence[JobTable], scenario: Scenario) -> tuple[list[MeanBound], list[str]]:
    machines = scenario.machines
    found = [
        MeanBound(
            name="squashed area",
            mean_jct_s=float(np.median([squashed_bound_s(table, machines) for table in tables])),
            note="shortest remaining first on all GPUs, or all CPUs, as one machine",
        )
    ]
    if max(map(len, tables)) > LP_MOST_JOBS:
        return found, [f"the bound by a linear program is computed for samples of at most {LP_MOST_JOBS} jobs"]
    try:
        values = [lp_bound_s(table, machines) for table in tables]
    except MissingExtraError as error:
        return found, [str(error)]
    bound = MeanBound(
        name="linear program", mean_jct_s=float(np.median(values)), note="time-indexed, over GPUs and CPUs; HiGHS"
    )
    return [*found, bound], []


def _row(policy: SimPolicy, found: Sequence[ClusterOutcome], base: Sequence[ClusterOutcome]) -> PolicyRow:
    def median(of: Callable[[ClusterOutcome], float]) -> float:
        return float(np.median([of(each) for each in found]))

    gains = [one.mean_jct_s / each.mean_jct_s for one, each in zip(base, found, strict=True)]
    used = [
        each.utilisation_frac / one.utilisation_frac if one.utilisation_frac else 1.0
        for one, each in zip(base, found, strict=True)
    ]
    return PolicyRow(
        name=policy.name,
        about=policy.about,
        mean_jct_s=median(lambda each: each.mean_jct_s),
        p50_jct_s=median(lambda each: each.quantile_s(0.5)),
        p99_jct_s=median(lambda each: each.quantile_s(0.99)),
        makespan_s=median(lambda each: each.makespan_s),
        utilisation_frac=median(lambda each: each.utilisation_frac),
        allocation_frac=median(lambda each: each.allocation_frac),
        jct_gain=float(np.median(gains)),
        jct_gain_low=min(gains),
        jct_gain_high=max(gains),
        utilisation_gain=float(np.median(used)),
        queueing_s=median(lambda each: float((each.start_s - each.arrival_s).mean())),
        waiting=_waiting(found),
        moves=median(lambda each: each.moves / len(each.gpus)),
    )


def _waiting(found: Sequence[ClusterOutcome]) -> dict[str, float]:
    """Shares of the queueing time of all samples, by cause."""
    sums = {cause: sum(each.waited_s[cause] for each in found) for cause in CAUSES}
    total = sum(sums.values())
    return {cause: seconds / total if total else 0.0 for cause, seconds in sums.items()}


def _curve(name: str, found: Sequence[ClusterOutcome]) -> JctCurve:
    values = np.concatenate([each.jct_s for each in found])
    return JctCurve(policy=name, jct_s=np.quantile(values, np.linspace(0.0, 1.0, 101)).tolist())


def _series(name: str, found: ClusterOutcome) -> UseSeries:
    return UseSeries(
        policy=name,
        times_s=found.times_s.tolist(),
        granted_cpus=found.granted_cpus.tolist(),
        busy_gpus=found.busy_gpus.tolist(),
        held_gpus=found.held_gpus.tolist(),
        queued=found.queued.tolist(),
    )
