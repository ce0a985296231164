"""How unequal the ranks of a synchronous program are, and which rank keeps the others waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from stoker.records.parts import PARTS, PREDICTED
from stoker.records.profile import RankRecord, SampledStep, Stragglers


def find_stragglers(records: Sequence[RankRecord]) -> Stragglers | None:
    """Compares the ranks step by step; None if fewer than two have sampled a step in common.

    In a synchronous step all ranks take equally long: an early rank waits for the others in their exchange. So a rank's
    own time is its step without exchange and waiting for it; the slowest over the mean of that, per step, is the
    statistic that is published for Alibaba-PAI's jobs (median 1.09 to 1.12 in ordinary ones, 1.86 in a bad one).
    """
    ranks = sorted(records, key=lambda record: record.rank)
    by_number = [{sample.number: sample for sample in record.samples} for record in ranks]
    common = sorted(number for number in by_number[0] if all(number in found for found in by_number)) if ranks else []
    if len(ranks) < 2:
        return None
    if not common:
        return None
    ratios: list[float] = []
    slowest: list[int] = []
    excess_s: list[float] = []
    for number in common:
        own = [own_s(found[number]) for found in by_number]
        mean = fmean(own)
        ratios.append(max(own) / mean if mean > 0 else 1.0)
        slowest.append(own.index(max(own)))
        excess_s.append(max(own) - (sum(own) - max(own)) / (len(own) - 1))
    position, times = Counter(slowest).most_common(1)[0]
    part, part_s = _excess(by_number, position, common)
    return Stragglers(
        ratio=median(ratios),
        ratio_p95=_percentile(ratios, 0.95),
        rank=ranks[position].rank,
        frequency=times / len(common),
        own_s=[fmean(own_s(found[number]) for number in common) for found in by_number],
        part=part,
        part_s=part_s,
        excess_s=median(excess_s),
        excess_low_s=_percentile(excess_s, 0.05),
        excess_high_s=_percentile(excess_s, 0.95),
        steps=len(common),
    )


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def own_s(sample: SampledStep) -> float:
    """A step without exchange and without waiting for others."""
    return sum(seconds for label, seconds in sample.seconds.items() if label != "communication")


def _excess(by_number: Sequence[dict[int, SampledStep]], position: int, common: Sequence[int]) -> tuple[str, float]:
    """The part in which one rank is most above the mean of all, and by how much."""

    def mean_of(found: dict[int, SampledStep], label: str) -> float:
        return fmean(found[number].seconds.get(label, 0.0) for number in common)

    found = {
        label: mean_of(by_number[position], label) - fmean(mean_of(each, label) for each in by_number)
        for label in PARTS
        if label != "communication"
    }
    label = max(found, key=lambda name: found[name])
    return label if label in PREDICTED else "input", found[label]


def waited_s(records: Sequence[RankRecord]) -> float:
    """Straggler wait in a step's exchange: the slowest rank's own exchange is the shortest."""
    exchanges = [
        fmean(sample.seconds.get("communication", 0.0) for sample in record.samples)
        for record in records
        if record.samples
    ]
    return fmean(exchanges) - min(exchanges) if len(exchanges) > 1 else 0.0
