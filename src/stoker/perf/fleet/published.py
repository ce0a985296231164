"""The figures that the PAI study published about its fleet, and how far a report is from them.

Source: arXiv 1910.05930, by its abstract and published summaries; those that are recalled are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stoker.perf.equations import Architecture
from stoker.perf.fleet.jobs import Fleet
from stoker.perf.fleet.shares import ALL
from stoker.perf.hardware import PAPER, Basis, Provenance
from stoker.records.fleet import FleetReport, Port, PublishedFigure, Upgrade

_ABSTRACT = Provenance(Basis.ABSTRACT, f"{PAPER}: abstract or published summaries")
_RECALLED = Provenance(Basis.RECALLED, f"{PAPER}, recalled")
_PS, _ONE = Architecture.PS_WORKER.label, Architecture.ONE_GPU.label
Sense = Literal["about", "more than", "less than"]


@dataclass(frozen=True)
class Marginal:
    """A published figure and how to find it in a report, both in percent."""

    what: str
    percent: float
    measure: Callable[[FleetReport, Fleet], float]
    source: Provenance
    sense: Sense = "about"

    def compare(self, report: FleetReport, fleet: Fleet) -> PublishedFigure:
        """The published figure and the report's."""
        found = self.measure(report, fleet)
        off = found - self.percent
        off_points = {"about": abs(off), "more than": max(0.0, -off), "less than": max(0.0, off)}[self.sense]
        prefix = "" if self.sense == "about" else f"{self.sense} "
        return PublishedFigure(
            what=self.what,
            published=f"{prefix}{self.percent:g} %",
            found=f"{found:.1f} %",
            mark=self.source.mark,
            off_points=off_points,
        )


def compare(report: FleetReport, fleet: Fleet) -> list[PublishedFigure]:
    """Every published figure and the report's."""
    return [marginal.compare(report, fleet) for marginal in MARGINALS]


def _jobs(report: FleetReport, *names: str) -> float:
    return 100 * sum(group.job_frac for group in report.groups if group.name in names)


def _gpus(report: FleetReport, *names: str) -> float:
    return 100 * sum(group.gpu_frac for group in report.groups if group.name in names)


def _share(report: FleetReport, *parts: str) -> float:
    shares = next(each for each in report.shares if each.group == ALL)
    return 100 * sum(shares.at_gpu[part] for part in parts)


def _job_share(report: FleetReport, group: str, part: str) -> float:
    return 100 * next((each.at_job[part] for each in report.shares if each.group == group), 0.0)


def _above(report: FleetReport, group: str, part: str, percent: int) -> float:
    """Percent of a class's jobs that spend more than ``percent`` of their time in a part."""
    curves = (each for each in report.curves if each.group == group and each.part == part)
    return 100 * next((1 - curve.jobs_frac[percent] for curve in curves), 0.0)


def _port(report: FleetReport, target: Architecture, measure: Callable[[Port], float]) -> float:
    ports = (each for each in report.ports if (each.source, each.target) == (_PS, target.label))
    return next((100 * measure(each) for each in ports), 0.0)


def _ethernet(report: FleetReport, measure: Callable[[Upgrade], float]) -> float:
    return next((100 * measure(each) for each in report.upgrades if each.after == "100 Gbps"), 0.0)


def _large(fleet: Fleet, *, at_gpu: bool) -> float:
    large = fleet.num_gpus > 128
    return 100 * float(np.sum(fleet.num_gpus[large]) / np.sum(fleet.num_gpus) if at_gpu else np.mean(large))


def _small_models(fleet: Fleet) -> float:
    return 0.0 if fleet.weight_bytes is None else 100 * float(np.mean(fleet.weight_bytes < 10e9))


_LOCAL, _CLUSTER = Architecture.ALLREDUCE_LOCAL, Architecture.ALLREDUCE_CLUSTER

MARGINALS = (
    Marginal("PS/Worker, share of the jobs", 29, lambda report, _: _jobs(report, _PS), _ABSTRACT),
    Marginal("PS/Worker, share of the GPUs", 81, lambda report, _: _gpus(report, _PS), _ABSTRACT),
    Marginal("input, share of the time at GPU level", 3, lambda report, _: _share(report, "input"), _ABSTRACT),
    Marginal("computation", 35, lambda report, _: _share(report, "compute", "memory"), _ABSTRACT),
    Marginal("weights", 62, lambda report, _: _share(report, "pcie", "nvlink", "ethernet"), _ABSTRACT),
    Marginal("compute-bound", 13, lambda report, _: _share(report, "compute"), _RECALLED),
    Marginal("memory-bound", 22, lambda report, _: _share(report, "memory"), _RECALLED),
    Marginal("input of 1w1g jobs", 10, lambda report, _: _job_share(report, _ONE, "input"), _ABSTRACT),
    Marginal("1w1g jobs over half on input", 5, lambda report, _: _above(report, _ONE, "input", 50), _ABSTRACT),
    Marginal(
        "PS/Worker jobs over 80 % on weights",
        40,
        lambda report, _: _above(report, _PS, "communication", 80),
        _ABSTRACT,
        "more than",
    ),
    Marginal(
        "AllReduce jobs, share of the jobs",
        1,
        lambda report, _: _jobs(report, _LOCAL.label, _CLUSTER.label, Architecture.PEARL.label),
        _RECALLED,
        "less than",
    ),
    Marginal("jobs over 128 GPUs", 0.7, lambda _, fleet: _large(fleet, at_gpu=False), _RECALLED),
    Marginal("their share of the GPUs", 16, lambda _, fleet: _large(fleet, at_gpu=True), _RECALLED),
    Marginal("models under 10 GB", 90, lambda _, fleet: _small_models(fleet), _RECALLED),
    Marginal(
        "PS/Worker jobs faster as AllReduce-Local",
        60,
        lambda report, _: _port(report, _LOCAL, lambda each: each.whole.faster_frac),
        _ABSTRACT,
    ),
    Marginal(
        "no faster per GPU there",
        22.6,
        lambda report, _: _port(report, _LOCAL, lambda each: 1 - each.per_gpu.faster_frac),
        _RECALLED,
    ),
    Marginal(
        "PS/Worker jobs faster as AllReduce-Cluster",
        67.9,
        lambda report, _: _port(report, _CLUSTER, lambda each: each.whole.faster_frac),
        _RECALLED,
    ),
    Marginal(
        "PS/Worker, mean gain by Ethernet 25 to 100 Gbps",
        70,
        lambda report, _: _ethernet(report, lambda each: each.speedup.get(_PS, 1.0) - 1),
        _ABSTRACT,
    ),
)
"""What a fleet that follows the study must show."""
