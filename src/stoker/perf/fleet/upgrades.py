"""The effect of another rate of one resource on a fleet, and the resource that each class is most sensitive to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stoker.perf.equations import Breakdown, FloatArray, Overlap
from stoker.perf.fleet.shares import ALL, RESOURCE_LABELS, Classes, step_s
from stoker.perf.hardware import Hardware, Resource, Variation, write_rate
from stoker.records.fleet import Sensitivity, Upgrade

WORTH = 1.05
"""Speed-up from which a job counts as gaining."""
_TWICE = 2.0


def upgrades_of(
    busy: Breakdown[FloatArray], hardware: Hardware, grid: Sequence[Variation], classes: Classes, overlap: Overlap
) -> list[Upgrade]:
    """The effect of each variation of the grid that differs from the present hardware."""
    before_s = step_s(busy, overlap)
    found: list[Upgrade] = []
    for variation, peak in _peaks(grid):
        present = hardware.peak(variation.resource)
        if peak == present:
            continue
        speedup = before_s / step_s(busy.with_rates(**{variation.resource: peak / present}), overlap)
        weight = classes.weight
        found.append(
            Upgrade(
                resource=RESOURCE_LABELS[variation.resource],
                before=write_rate(variation.resource, present),
                after=write_rate(variation.resource, peak),
                factor=peak / present,
                mark=variation.source.mark,
                speedup=classes.means(speedup),
                gpu_time_saved_frac=float(1 - np.sum(weight / speedup) / np.sum(weight)),
                faster_frac=float(np.mean(speedup >= WORTH)),
            )
        )
    return found


def _peaks(grid: Sequence[Variation]) -> Iterator[tuple[Variation, float]]:
    for variation in grid:
        for peak in variation.peaks:
            yield variation, peak


def sensitivities_of(busy: Breakdown[FloatArray], classes: Classes, overlap: Overlap) -> list[Sensitivity]:
    """Mean speed-up of each class by twice the rate of each resource, best first."""
    before_s = step_s(busy, overlap)
    by_resource = {
        resource: classes.means(before_s / step_s(busy.with_rates(**{resource: _TWICE}), overlap))
        for resource in Resource
    }
    found: list[Sensitivity] = []
    for group in (*classes.names, ALL):
        speedup = [(RESOURCE_LABELS[resource], means[group]) for resource, means in by_resource.items()]
        found.append(Sensitivity(group=group, speedup=sorted(speedup, key=lambda pair: -pair[1])))
    return found
