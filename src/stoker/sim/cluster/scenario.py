"""A scenario: which jobs of a trace, with which demand for CPUs, at which load, on which machines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from stoker.core.units import format_seconds
from stoker.scale.cluster.curves import RateCurve, linear
from stoker.scale.cluster.state import FloatArray, IntArray
from stoker.sim.cluster.demand import GOLDMINER_CPUS, SYNERGY_MODELS, faster_gpus, segments_of, synergy_curve
from stoker.sim.cluster.engine import MoveCosts
from stoker.sim.cluster.traces import TracedJobs
from stoker.sim.cluster.workload import ClusterMachines, JobTable

DAY_S = 86400.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """All that is assumed besides the trace."""

    machines: ClusterMachines
    demand: str = "trace"
    """"goldminer", "synergy", "trace" (as it says), or a number of CPUs for each GPU."""
    cpu_scale: float = 1.0
    """Factor on all demands."""
    speedup: float = 1.0
    """How many times as fast the accelerators are as those of the trace."""
    stragglers: tuple[float, ...] = (1.0,)
    """How much longer the slowest of several workers takes than their mean, since the others wait for it: of each job
    with several GPUs one of these."""
    load: float | None = 0.9
    """GPU time at full speed, of all there is until the last arrival; None: arrivals as in the trace."""
    jobs: int | None = 500
    """Size of a sample; None: all."""
    max_gpus: int | None = None
    """Jobs with more are left out; by default those with more than the cluster has."""
    cut_s: float | None = 2.0 * DAY_S
    """Longer durations are cut to this; None: none is."""
    draw: str = "window"
    """"window": a sample is jobs that followed each other; "random": drawn from the whole trace."""
    costs: MoveCosts = field(default_factory=MoveCosts)
    spread: bool = False

    def __post_init__(self) -> None:
        for name in ("cpu_scale", "speedup"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name)}")
        if not self.stragglers or not min(self.stragglers) >= 1.0:
            raise ValueError(f"`stragglers` must be at least 1 each, got {self.stragglers}")
        if self.load is not None and not self.load > 0.0:
            raise ValueError(f"`load` must be positive, got {self.load}")
        if self.draw not in ("window", "random"):
            raise ValueError(f"`draw` must be window or random, got {self.draw!r}")
        if self.demand not in ("goldminer", "synergy", "trace"):
            demand_number(self.demand)

    def table(self, traced: TracedJobs, seed: int) -> JobTable:
        """A sample of the jobs of a trace, on this scenario's terms.

        Raises:
            ValueError: no job fits, or the trace does not say what `demand` needs.
        """
        random = np.random.default_rng(seed)
        fitting = np.flatnonzero(traced.gpus <= self._most_gpus)
        if not len(fitting):
            raise ValueError(
                f"`jobs` must have one that fits the cluster of {self.machines.total_gpus} GPUs, the smallest takes "
                f"{int(traced.gpus.min())}"
            )
        rows = self._rows(fitting, random)
        gpus = traced.gpus[rows]
        duration_s = traced.duration_s[rows]
        if self.cut_s is not None:
            duration_s = np.minimum(duration_s, self.cut_s)
        curves = self._curves(traced, rows, random)
        widths, slopes = segments_of(curves, gpus.astype(np.float64))
        widths, slopes = widths * self.cpu_scale, slopes / self.cpu_scale
        widths, slopes = faster_gpus(widths, slopes, self.speedup)
        count = len(rows)
        late = random.choice(np.array(self.stragglers), count) if max(self.stragglers) > 1.0 else 1.0
        users = traced.users or ("",) * len(traced.gpus)
        chosen: list[int] = rows.tolist()
        numbers = {name: number for number, name in enumerate(dict.fromkeys(users[row] for row in chosen))}
        table = JobTable(
            arrival_s=traced.arrival_s[rows] - traced.arrival_s[rows[0]],
            gpus=gpus,
            duration_s=duration_s / self.speedup * np.where(gpus > 1, late, 1.0),
            widths=widths,
            slopes=slopes,
            movable=np.ones(count, dtype=np.bool_) if traced.movable is None else traced.movable[rows],
            resumable=np.zeros(count, dtype=np.bool_) if traced.resumable is None else traced.resumable[rows],
            weight=np.ones(count) if traced.weight is None else traced.weight[rows],
            priority=np.zeros(count, dtype=np.int64) if traced.priority is None else traced.priority[rows],
            user=np.array([numbers[users[row]] for row in chosen], dtype=np.int64),
            users=tuple(numbers),
        )
        return table if self.load is None else table.at_load(self.load, self.machines)

    @property
    def _most_gpus(self) -> int:
        return min(self.max_gpus or self.machines.total_gpus, self.machines.total_gpus)

    def assumptions(self, traced: TracedJobs) -> list[str]:
        """Sentences on all that the trace did not say, and on what was changed of it."""
        machines, costs = self.machines, self.costs
        size = "all jobs" if self.jobs is None else f"samples of {self.jobs:,} jobs"
        how = {"window": "that followed each other", "random": "drawn from the whole trace"}[self.draw]
        added = f", and {machines.cpu_nodes} with {machines.cpu_node_cpus} CPUs alone" if machines.added_cpus else ""
        found = [
            f"{machines.nodes} nodes with {machines.gpus} GPUs and {machines.cpus} CPUs{added}",
            size if self.jobs is None else f"{size} {how}",
            *traced.notes,
            self._demand_words(traced),
            "a job's rate is in proportion to its CPUs, up to full speed"
            if self.demand != "synergy" else "rates over CPUs are Synergy's profiles, made concave",
        ]  # fmt: skip
        if wide := int((traced.gpus > self._most_gpus).sum()):
            found.append(
                f"{wide:,} of {len(traced.gpus):,} jobs take more than {self._most_gpus} GPUs and are left out"
            )
        if self.cut_s is not None:
            found.append(f"durations are cut at {format_seconds(self.cut_s)}")
        if self.load is not None:
            found.append(f"arrivals are scaled so that at full speed {self.load:.0%} of the GPUs would be busy")
        if self.speedup != 1.0:
            found.append(f"GPUs are {self.speedup:g} times as fast as those of the trace: as many more CPUs feed them")
        if max(self.stragglers) > 1.0:
            times = " or ".join(f"{each:.3g}" for each in self.stragglers)
            found.append(f"jobs with several GPUs take {times} times as long: they wait for their slowest worker")
        found.append(
            "a gang's GPUs may be on any nodes" if self.spread else
            "a gang that fits one node gets one; a larger one takes whole nodes"
        )  # fmt: skip
        found.append(
            f"CPUs that a job gains make nothing for {costs.start_s:g} s, and {costs.drain_s:g} s more if they are "
            "taken from another"
        )
        if np.isfinite(costs.link_cpus):
            found.append(f"a node's link carries the batches of {costs.link_cpus:g} remote CPUs")
        return [f"{each[:1].upper()}{each[1:]}" for each in found]

    def _rows(self, fitting: IntArray, random: np.random.Generator) -> IntArray:
        if self.jobs is None or self.jobs >= len(fitting):
            return fitting
        if self.draw == "random":
            return np.sort(random.choice(fitting, self.jobs, replace=False))
        begin = int(random.integers(0, len(fitting) - self.jobs + 1))
        return fitting[begin : begin + self.jobs]

    def _curves(self, traced: TracedJobs, rows: IntArray, random: np.random.Generator) -> list[RateCurve]:
        """The curve of one GPU of each job."""
        if self.demand == "synergy":
            models = self._models(traced, rows, random)
            known = {model: synergy_curve(model) for model in set(models)}
            return [known[model] for model in models]
        if self.demand == "goldminer":
            need: FloatArray = random.choice(np.array(GOLDMINER_CPUS), len(rows))
        elif self.demand == "trace":
            if traced.need_per_gpu is None:
                raise ValueError(
                    f"`--demand` must be goldminer, synergy or a number for {traced.name}, which does not say how many "
                    "CPUs its jobs need"
                )
            need = traced.need_per_gpu[rows]
        else:
            need = np.full(len(rows), demand_number(self.demand))
        shared: dict[float, RateCurve] = {}
        return [shared.setdefault(each, linear(each)) for each in need.tolist()]

    def _models(self, traced: TracedJobs, rows: IntArray, random: np.random.Generator) -> list[str]:
        """Synergy's model of each job: the one that it names, else drawn."""
        drawn: list[int] = random.integers(0, len(SYNERGY_MODELS), len(rows)).tolist()
        chosen: list[int] = rows.tolist()
        names = traced.models or ("",) * len(traced.gpus)
        return [_synergy_name(names[row]) or SYNERGY_MODELS[number] for row, number in zip(chosen, drawn, strict=True)]

    def _demand_words(self, traced: TracedJobs) -> str:
        scale = f", times {self.cpu_scale:g}" if self.cpu_scale != 1.0 else ""
        if self.demand == "goldminer":
            choices = ", ".join(f"{each:g}" for each in GOLDMINER_CPUS)
            return f"CPUs for each GPU at full speed are drawn from {choices}, made up after GoldMiner's text{scale}"
        if self.demand == "synergy":
            drawn = "as far as they are named, else drawn" if traced.models else "drawn"
            return f"models of Synergy are {drawn}, with equal chances{scale}"
        if self.demand == "trace":
            return f"CPUs for each GPU at full speed are the trace's{scale}"
        return f"each GPU takes {self.demand} CPUs at full speed{scale}"


def demand_number(text: str) -> float:
    """The demand as a number of CPUs for each GPU.

    Raises:
        ValueError: it is neither a name nor a positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e6:
        raise ValueError(f"`demand` must be goldminer, synergy, trace or a positive number, got {text!r}")
    return value


def _synergy_name(model: str) -> str:
    """The model of Synergy that a trace means; empty if there is none."""
    plain = re.sub(r"[^a-z0-9]", "", model.lower())
    return next((name for name in SYNERGY_MODELS if plain.startswith(name)), "")
