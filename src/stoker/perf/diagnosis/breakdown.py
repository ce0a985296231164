"""Divides a step into parts from the ranks' records: always-on marks give durations, sampled steps give causes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from stoker.perf.diagnosis.marks import StepPace, pace_of
from stoker.records.parts import PARTS, PREDICTED, fold
from stoker.records.profile import RankRecord, SampledStep, StepTimes


class StepBreakdown(NamedTuple):
    """A rank's step.

    Attributes:
        pace: of steps that nothing disturbed.
        seconds: by part, of :data:`~stoker.records.parts.PARTS`; they sum to the pace.
        hidden_s: of communication.
        own_s: of the step, without communication.
    """

    pace: StepPace
    seconds: dict[str, float]
    hidden_s: float
    steps: int
    sampled: int

    def parts(self) -> dict[str, float]:
        """Seconds by the rows of a prediction."""
        return fold(self.seconds, PREDICTED)


def break_down(record: RankRecord) -> StepBreakdown | None:
    """The step of one rank; None if no whole step was observed.

    Sampled steps are slower than others. The overhead of sampling lies between operators, so it is subtracted from the
    host's part first, and the rest from all parts. On the CPU the optimizer's time comes from the marks, which have no
    overhead. Without sampled steps, the time between batch and optimizer is ``other``, undivided.
    """
    plain = [step for step in record.steps if not step.sampled] or list(record.steps)
    if not plain:
        return None
    pace = pace_of([step.period_s for step in plain])
    seconds, hidden_s = _divided(record, plain, pace) if record.samples else (_undivided(plain, pace), 0.0)
    total_s = sum(seconds.values())
    scale = pace.seconds / total_s if total_s > 0 else 0.0
    return StepBreakdown(
        pace=pace,
        seconds={label: scale * seconds.get(label, 0.0) for label in PARTS},
        hidden_s=scale * hidden_s,
        steps=len(plain),
        sampled=len(record.samples),
    )


def _undivided(plain: Sequence[StepTimes], pace: StepPace) -> dict[str, float]:
    wait_s, optimizer_s = _typical_s(plain, "wait_s"), _typical_s(plain, "optimizer_s")
    return {"input": wait_s, "optimizer": optimizer_s, "other": max(0.0, pace.seconds - wait_s - optimizer_s)}


def _typical_s(plain: Sequence[StepTimes], name: str) -> float:
    """Typical seconds of a mark, found as a step's time is: recurring waits count in full, disturbances do not."""
    return pace_of([getattr(step, name) for step in plain]).seconds


def _divided(record: RankRecord, plain: Sequence[StepTimes], pace: StepPace) -> tuple[dict[str, float], float]:
    samples = typical(record.samples)
    wait_s = _typical_s(plain, "wait_s")
    seconds = {label: fmean(sample.seconds.get(label, 0.0) for sample in samples) for label in PARTS}
    if record.device == "cpu":
        fixed = {"input": wait_s, "optimizer": _typical_s(plain, "optimizer_s")}
    else:
        fixed = {"input": _exposed_wait(record, samples, wait_s)}
    rest = {label: value for label, value in seconds.items() if label not in fixed}
    target_s = max(0.0, pace.seconds - sum(fixed.values()))
    rest = without_overhead(rest, target_s, RANGE_S * fmean(sample.ranges for sample in samples))
    hidden_s = fmean(sample.hidden_s for sample in samples)
    return {**rest, **fixed}, hidden_s


def typical(samples: Sequence[SampledStep]) -> list[SampledStep]:
    """Sampled steps except disturbed ones: among few, one would decide the division into parts.

    Waiting for input does not count against a step; it may come every few batches.
    """
    busy = [sample.period_s - sample.seconds.get("input", 0.0) for sample in samples]
    most = _DISTURBED * median(busy)
    return [sample for sample, busy_s in zip(samples, busy, strict=True) if busy_s <= most]


_DISTURBED = 2.0
"""A sampled step that takes this many times the median is left out."""


def _exposed_wait(record: RankRecord, samples: Sequence[SampledStep], wait_s: float) -> float:
    """The device idles only for a part of the host's wait, which is known from sampled steps."""
    numbers = {sample.number for sample in samples}
    host_s = fmean([step.wait_s for step in record.steps if step.number in numbers] or [0.0])
    idle_s = fmean(sample.seconds.get("input", 0.0) for sample in samples)
    return wait_s * min(1.0, idle_s / host_s) if host_s > 0 else wait_s


RANGE_S = 4e-6
"""Most that the profiler adds for each range that it records: 1.2 to 1.6 times the step of a small perceptron, of about
140 ranges (bar ``perf_hooks``)."""


def without_overhead(seconds: Mapping[str, float], target_s: float, most_s: float) -> dict[str, float]:
    """The seconds, scaled to a sum of ``target_s``.

    Args:
        seconds: by label, of sampled steps.
        target_s: of steps that are not.
        most_s: most of the difference that the profiler may have caused: it comes off the host's part first. What
            exceeds it has slowed down everything.
    """
    total_s = sum(seconds.values())
    if total_s <= 0:
        return {**seconds, "other": target_s}
    host_s = max(0.0, seconds.get("host", 0.0) - min(most_s, max(0.0, total_s - target_s)))
    lighter = {**seconds, "host": host_s}
    total_s = sum(lighter.values())
    if total_s <= 0:
        return {**lighter, "other": target_s}
    return {label: value * target_s / total_s for label, value in lighter.items()}


def mean_of(breakdowns: Sequence[StepBreakdown]) -> StepBreakdown:
    """The mean over ranks, label by label; they share one pace, that of the slowest."""
    slowest = max(breakdowns, key=lambda each: each.pace.seconds)
    seconds = {label: fmean(each.seconds[label] for each in breakdowns) for label in PARTS}
    total_s = sum(seconds.values())
    scale = slowest.pace.seconds / total_s if total_s > 0 else 1.0
    return slowest._replace(
        seconds={label: scale * value for label, value in seconds.items()},
        hidden_s=fmean(each.hidden_s for each in breakdowns),
    )
