"""Jobs and machines of a simulated cluster, as columns, with the assumptions that made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stoker.scale.cluster.state import FloatArray, IntArray

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class ClusterMachines:
    """Nodes with GPUs, all alike, and nodes with CPUs alone."""

    nodes: int
    gpus: int
    """GPUs of each node."""
    cpus: int
    """CPUs of each node, for data workers."""
    cpu_nodes: int = 0
    cpu_node_cpus: int = 0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1 or self.cpus < 1:
            raise ValueError(
                f"`nodes`, `gpus` and `cpus` must be at least 1, got {self.nodes}, {self.gpus} and {self.cpus}"
            )
        if self.cpu_nodes < 0 or self.cpu_node_cpus < 0:
            raise ValueError(
                f"`cpu_nodes` and `cpu_node_cpus` must not be negative, got {self.cpu_nodes} and {self.cpu_node_cpus}"
            )

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return self.nodes * self.gpus

    @property
    def added_cpus(self) -> int:
        """CPUs of the nodes without GPUs."""
        return self.cpu_nodes * self.cpu_node_cpus

    @property
    def total_cpus(self) -> int:
        """CPUs of all nodes."""
        return self.nodes * self.cpus + self.added_cpus

    @property
    def share_cpus(self) -> float:
        """CPUs of a node for each of its GPUs."""
        return self.cpus / self.gpus


@dataclass(frozen=True, kw_only=True)
class JobTable:
    """Jobs in the order of their arrival; columns of equal length.

    Raises:
        ValueError: arrivals are not in order, or a duration, a number of GPUs or a curve is not positive.
    """

    arrival_s: FloatArray
    gpus: IntArray
    duration_s: FloatArray
    """At full speed."""
    widths: FloatArray
    """CPUs of each segment of the curves, of the whole job; jobs by segments, 0 where a curve has fewer."""
    slopes: FloatArray
    """Rate, as a share of full speed, that each CPU of a segment adds."""
    movable: BoolArray
    """Whether its data workers may run on other nodes."""
    resumable: BoolArray
    weight: FloatArray
    priority: IntArray
    user: IntArray
    users: tuple[str, ...] = ("",)
    assumptions: tuple[str, ...] = field(default=())
    """Sentences: what the trace did not say."""

    def __post_init__(self) -> None:
        if len(self) and ((np.diff(self.arrival_s) < 0).any() or not np.isfinite(self.arrival_s).all()):
            raise ValueError("`arrival_s` must be in order and finite")
        for name in ("gpus", "duration_s", "weight"):
            if len(self) and not (getattr(self, name) > 0).all():
                raise ValueError(f"`{name}` must be positive, got {getattr(self, name).min()}")
        if len(self) and not (self.need_cpus > 0).all():
            raise ValueError("`widths` must be positive in each row")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def need_cpus(self) -> FloatArray:
        """CPUs of each job for full speed."""
        return self.widths.sum(axis=1)

    @property
    def span_s(self) -> float:
        """Time from the first to the last arrival."""
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) else 0.0

    def take(self, rows: IntArray | BoolArray) -> JobTable:
        """Some of the jobs, in order, the first at 0 s."""
        columns = {name: getattr(self, name)[rows] for name in _COLUMNS}
        if len(columns["arrival_s"]):
            columns["arrival_s"] = columns["arrival_s"] - columns["arrival_s"][0]
        return replace(self, **columns)

    def at_load(self, load: float, machines: ClusterMachines) -> JobTable:
        """The same jobs, arriving faster or slower: at full speed they would keep ``load`` of the GPUs busy."""
        if not load > 0.0:
            raise ValueError(f"`load` must be positive, got {load}")
        work = float((self.gpus * self.duration_s).sum())
        span = work / (load * machines.total_gpus)
        factor = span / self.span_s if self.span_s > 0.0 else 1.0
        return replace(self, arrival_s=(self.arrival_s - self.arrival_s[0]) * factor)

    def fitting(self, machines: ClusterMachines) -> JobTable:
        """The jobs whose gangs fit the cluster."""
        return self.take(self.gpus <= machines.total_gpus)


_COLUMNS = (
    "arrival_s", "gpus", "duration_s", "widths", "slopes", "movable", "resumable", "weight", "priority", "user",
)  # fmt: skip


def table_of(
    arrival_s: Sequence[float] | FloatArray,
    gpus: Sequence[int] | IntArray,
    duration_s: Sequence[float] | FloatArray,
    need_cpus: Sequence[float] | FloatArray,
    *,
    assumptions: tuple[str, ...] = (),
) -> JobTable:
    """A table of jobs whose rates are in proportion to their CPUs, ordered by arrival; all else is the default."""
    arrival = np.asarray(arrival_s, dtype=np.float64)
    order = np.argsort(arrival, kind="stable")
    need = np.asarray(need_cpus, dtype=np.float64)[order][:, None]
    count = len(arrival)
    return JobTable(
        arrival_s=arrival[order],
        gpus=np.asarray(gpus, dtype=np.int64)[order],
        duration_s=np.asarray(duration_s, dtype=np.float64)[order],
        widths=need,
        slopes=1.0 / need,
        movable=np.ones(count, dtype=np.bool_),
        resumable=np.zeros(count, dtype=np.bool_),
        weight=np.ones(count),
        priority=np.zeros(count, dtype=np.int64),
        user=np.zeros(count, dtype=np.int64),
        assumptions=assumptions,
    )
