"""Predicts a training step on a measured CPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stoker.perf.communication.methods import RankSpeed
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.records import MATRIX_KINDS, PHASES, Operation, Phase, StepFeatures
from stoker.perf.machine.curves import placed
from stoker.perf.machine.rates import Rates, Work
from stoker.perf.machine.speed import Speed
from stoker.perf.prediction.prediction import Prediction, Tier, refused
from stoker.perf.prediction.rank import Rank, without

_FAR = 1.5
"""Distance to the next measurement, in units of the logarithm, from which an operation counts as unmeasured."""
_LEAST = 0.9
"""Share of the time that must lie on measured curves."""
_STEP_SPREAD = 0.05
"""Standard deviation of a step's time beyond its kernels': steps of one program differ by so much between runs."""
_EMPTY, _FULL = 1 / 64, 1 / 2
"""Shares of the last cache: a step that keeps less alive finds all of it there, one that keeps more does not."""
_WORTH = 0.05
"""Share of a step from which fetching memory is mentioned."""
_WITHIN = 1.645
"""Standard deviations that hold 90 % of a normal distribution."""


@dataclass(frozen=True)
class Line:
    """Predicted time of one kind of call."""

    operation: Operation
    seconds: float
    """Time of all calls in a step, without the host's work."""
    host_s: float
    curve: str
    measured: bool
    """Whether such an operation of about such a size was measured."""


def predict_step(features: StepFeatures, rates: Rates | Speed) -> Prediction:
    """One optimizer step on the machine that was measured, in a process that keeps the memory that it has freed.

    Args:
        features: traced for the target ``cpu``.
        rates: of the machine; a :class:`Speed` where many steps are predicted.
    """
    speed = rates if isinstance(rates, Speed) else Speed(rates)
    if features.target != "cpu":
        return refused(f"features of {features.name} are for {features.target}; trace the program with target cpu")
    other = {op.dtype for op in features.operations if op.kind in MATRIX_KINDS} - {"float32"}
    if other:
        return refused(f"{features.name} multiplies in {', '.join(sorted(other))}; float32 is what was measured")
    lines = predicted_lines(features, speed)
    parts = _parts(lines)
    seconds = sum(parts.values())
    apart = math.exp(_WITHIN * _spread(lines, speed, seconds))
    tier, reasons = _tier(lines, features)
    fetched = fetched_seconds(features, speed.rates)
    if fetched >= _WORTH * seconds:
        reasons += (f"up to about {1e3 * fetched:.1f} ms more where the allocator gives memory back in each step",)
    if tier == "extrapolated":
        apart *= apart
    return Prediction(
        seconds=seconds, low=seconds / apart, high=seconds * apart, tier=tier, parts=parts, reasons=reasons
    )


def rank_of(features: StepFeatures, rates: Rates | Speed) -> Rank:
    """A process that computes the step with a machine like the measured one for itself.

    Args:
        features: traced for the target ``cpu``.
        rates: of the machine.
    """
    speed = rates if isinstance(rates, Speed) else Speed(rates)
    found = predict_step(features, speed)
    if found.tier == "refused":
        return without(found.reasons)
    lines = predicted_lines(features, speed)
    seconds = {id(line.operation): line.seconds + line.host_s for line in lines}
    whole, parts = PassTimes.of(features, lambda operation: seconds[id(operation)]), features.micro_batches
    share = cold_share(speed.rates, "backward", features.peak_bytes)

    def product(m: int, n: int, k: int) -> float:
        moved = 4.0 * (m * n + m * k + n * k)
        work = Work(curve="matmul.backward", dims=(m, n, k), flops=2.0 * m * n * k, bytes=moved)
        call = speed.of(work)
        return call.warm_s * (1 - share) + call.cold_s * share + speed.rates.host_s["backward"]

    return Rank(
        times=replace(whole.scaled(1 / parts), optimizer_s=whole.optimizer_s),
        speed=RankSpeed(product, 1.0 / speed.roofline.bytes_per_s),
        below=found.low / found.seconds, above=found.high / found.seconds, tier=found.tier, reasons=found.reasons,
        share=found.share,
    )  # fmt: skip


def fetched_seconds(features: StepFeatures, rates: Rates) -> float:
    """How much longer a step takes if all that it keeps for a while is returned to the system and fetched again."""
    weights = features.weights
    lasting = weights.bytes + weights.optimizer_bytes + features.input_bytes
    return max(0, features.peak_bytes - lasting) * rates.fault_s_per_byte


def predicted_lines(features: StepFeatures, speed: Speed) -> list[Line]:
    """Each kind of call; a step whose memory outgrows the caches finds its tensors cold."""
    shares = {phase: cold_share(speed.rates, phase, features.peak_bytes) for phase in PHASES}
    lines: list[Line] = []
    for operation in features.operations:
        work = placed(operation)
        found = speed.of(work)
        share = shares[operation.phase]
        lines.append(
            Line(
                operation, operation.count * (found.warm_s * (1 - share) + found.cold_s * share),
                operation.count * speed.rates.host_s[operation.phase], found.curve,
                found.curve == work.curve and found.distance < _FAR,
            )
        )  # fmt: skip
    return lines


def cold_share(rates: Rates, phase: Phase, alive_bytes: float) -> float:
    """Share of tensors in memory instead of the caches: as measured, less if a step leaves room in the caches."""
    filled = alive_bytes / rates.cache_bytes
    room = math.log(_FULL / max(filled, _EMPTY)) / math.log(_FULL / _EMPTY)
    return rates.coldness.get(phase, 1.0) * (1.0 - max(0.0, room))


def _parts(lines: Sequence[Line]) -> dict[str, float]:
    parts: dict[str, float] = dict.fromkeys(("compute", "memory", "host", "optimizer"), 0.0)
    for line in lines:
        if line.operation.phase == "optimizer":
            parts["optimizer"] += line.seconds + line.host_s
        else:
            parts["compute" if line.operation.kind in MATRIX_KINDS else "memory"] += line.seconds
            parts["host"] += line.host_s
    return parts


def _spread(lines: Sequence[Line], speed: Speed, seconds: float) -> float:
    """Standard deviation of the step's logarithm.

    It comes from each curve's leave-one-out errors and from differences between runs. Errors of operations on one curve
    are correlated, those of different curves independent.
    """
    by_curve: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        by_curve[line.curve] += line.seconds
    squares = (_STEP_SPREAD * seconds) ** 2
    for curve, part in by_curve.items():
        residuals = speed.surfaces[curve].residuals
        # 1.5 times the median error stands for the standard deviation, so that a few outliers do not decide.
        squares += (part * 1.48 * float(np.median(np.abs(residuals)))) ** 2
    return math.sqrt(squares) / seconds


def _tier(lines: Sequence[Line], features: StepFeatures) -> tuple[Tier, tuple[str, ...]]:
    total = sum(line.seconds for line in lines)
    strange: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        if not line.measured:
            strange[line.operation.name] += line.seconds
    reasons = [
        f"{name} at such sizes was not measured ({share:.0%} of the time)"
        for name, part in sorted(strange.items(), key=lambda item: -item[1])
        if (share := part / total) >= 0.01
    ]
    reasons += [f"{found.name} has no formula: charged for its bytes" for found in features.unknown]
    known = sum(line.seconds for line in lines if line.measured) >= _LEAST * total
    return ("calibrated" if known else "extrapolated"), tuple(reasons)
