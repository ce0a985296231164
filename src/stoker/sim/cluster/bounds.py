"""Lower bounds of the mean completion time that no policy can beat: one by a queue, one by a linear program.

Both relax what a cluster cannot do: a job may run on any part of its GPUs or CPUs at any time. They are compared with
policies; a policy below a bound is a mistake of one of them.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from stoker.core.extras import require
from stoker.scale.cluster.state import FloatArray
from stoker.sim.cluster.workload import ClusterMachines, JobTable


def squashed_bound_s(table: JobTable, machines: ClusterMachines) -> float:
    """Mean completion time below which none can be: the larger of two queues, and of the durations themselves.

    GPU seconds, and CPU seconds at each job's cheapest, on one machine with the capacity of all: there the shortest
    remaining first is the best for the mean. No job ends before its duration, and a mean over jobs of the larger of
    two bounds does not hold for each job, so the means are compared.

    Source: the squashed area bound of malleable tasks (Turek et al., 1994); SRPT is optimal on one machine (Schrage).
    """
    gpu_s = table.gpus * table.duration_s / machines.total_gpus
    cpu_s = cpu_work_s(table) / machines.total_cpus
    means = [float(_srpt_flow_s(table.arrival_s, work).mean()) for work in (gpu_s, cpu_s)]
    return max(*means, float(table.duration_s.mean()))


def cpu_work_s(table: JobTable) -> FloatArray:
    """CPU seconds that each job takes at least: those of its steepest segment, which any unit of work costs or more."""
    return table.duration_s / table.slopes.max(axis=1)


def _srpt_flow_s(arrival_s: FloatArray, work_s: FloatArray) -> FloatArray:
    """Completion times on one machine that always serves the job with the least work left."""
    flow = np.zeros(len(arrival_s))
    waiting: list[tuple[float, int]] = []
    now_s, following = 0.0, 0
    arrivals, works = arrival_s.tolist(), work_s.tolist()
    while following < len(arrivals) or waiting:
        if not waiting:
            now_s = max(now_s, arrivals[following])
        while following < len(arrivals) and arrivals[following] <= now_s:
            heapq.heappush(waiting, (works[following], following))
            following += 1
        left_s, job = heapq.heappop(waiting)
        until_s = arrivals[following] if following < len(arrivals) else np.inf
        if now_s + left_s <= until_s:
            now_s += left_s
            flow[job] = now_s - arrivals[job]
        else:
            heapq.heappush(waiting, (left_s - (until_s - now_s), job))
            now_s = until_s
    return flow


def lp_bound_s(table: JobTable, machines: ClusterMachines, intervals: int = 100, horizon_s: float = 0.0) -> float:
    """Mean completion time by a time-indexed linear program over GPUs and CPUs, relaxed: a lower bound.

    Of each job, how much is done in which interval: at most full speed, never before its arrival, together at most all
    GPUs and CPUs. Work counts at the left end of its interval, and half the shortest duration is added: what is done at
    full speed is on average done so long before its end.

    Args:
        table: the jobs.
        machines: the cluster.
        intervals: of time; more are tighter and take longer.
        horizon_s: time by which all could be done; by default the time that the work takes after the last arrival.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    optimize: Any = require("scipy.optimize", extra="plan")
    sparse: Any = require("scipy.sparse", extra="plan")
    jobs = len(table)
    gpu_s, cpu_s = table.gpus * table.duration_s, cpu_work_s(table)
    if not horizon_s:
        rest = max(float(gpu_s.sum()) / machines.total_gpus, float(cpu_s.sum()) / machines.total_cpus)
        horizon_s = float(table.arrival_s[-1]) + rest + float(table.duration_s.max())
    ends = _edges(table, horizon_s, intervals)
    left, length = ends[:-1], np.diff(ends)
    slots = len(length)
    # The part of an interval in which a job is there; its work counts from then on.
    present = np.maximum(0.0, np.minimum(length, ends[1:] - table.arrival_s[:, None]))
    begin = np.maximum(left, table.arrival_s[:, None])
    job, slot = np.nonzero(present > 0.0)
    count = len(job)
    share = np.arange(count)
    # Columns: the part of each job in each interval, then the completion time of each job.
    cost = np.concatenate([np.zeros(count), np.ones(jobs)])
    most = np.minimum(1.0, present[job, slot] / table.duration_s[job])
    whole = sparse.csr_matrix((np.ones(count), (job, share)), shape=(jobs, count + jobs))
    gpus = sparse.csr_matrix((gpu_s[job], (slot, share)), shape=(slots, count + jobs))
    cpus = sparse.csr_matrix((cpu_s[job], (slot, share)), shape=(slots, count + jobs))
    flow_s = begin[job, slot] - table.arrival_s[job]
    late = sparse.csr_matrix(
        (np.concatenate([flow_s, -np.ones(jobs)]), (np.concatenate([job, np.arange(jobs)]),
         np.concatenate([share, count + np.arange(jobs)]))), shape=(jobs, count + jobs),
    )  # fmt: skip
    found: Any = optimize.linprog(
        cost,
        A_ub=sparse.vstack([gpus, cpus, late]),
        b_ub=np.concatenate([length * machines.total_gpus, length * machines.total_cpus, -table.duration_s / 2.0]),
        A_eq=whole,
        b_eq=np.ones(jobs),
        bounds=np.column_stack(
            [np.concatenate([np.zeros(count), table.duration_s]), np.concatenate([most, np.full(jobs, np.inf)])]
        ),
        method="highs",
    )
    if found.status != 0:
        raise ValueError(f"`horizon_s` must leave time for all jobs, got {horizon_s:.0f} s: {found.message}")
    return float(found.fun) / jobs


def _edges(table: JobTable, horizon_s: float, intervals: int) -> FloatArray:
    """Ends of intervals: as many arrivals in each as in any other, and even ones after the last arrival."""
    half = max(2, intervals // 2)
    arrivals = np.quantile(table.arrival_s, np.linspace(0.0, 1.0, half))
    return np.unique(np.concatenate([arrivals, np.linspace(0.0, horizon_s, intervals - half + 1)]))
