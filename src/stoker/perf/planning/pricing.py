"""What a candidate takes in hours and money, or why it cannot run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from stoker.perf.communication import refusal
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.memory import Fit
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.space import Candidate
from stoker.perf.prediction.anchor import Anchor
from stoker.perf.prediction.prediction import Prediction
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.strategy import DataParallel, Strategy

TIERS = ("calibrated", "extrapolated")
"""Tiers of plans, the surer first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A figure and the ends of its interval."""

    likely: float
    low: float
    high: float

    def times(self, factor: float) -> Amount:
        """All three, multiplied by a factor."""
        return Amount(likely=self.likely * factor, low=self.low * factor, high=self.high * factor)

    def at_least(self, bound: float) -> Amount:
        """All three, raised to a lower bound."""
        return Amount(likely=max(self.likely, bound), low=max(self.low, bound), high=max(self.high, bound))


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A candidate and what it takes.

    Attributes:
        steps: optimizer steps of the job.
        step_s: seconds of each.
        hours, cost: of the whole job; the cost is in the currency of the offers.
        parts: seconds of a step by what they are spent on, as of a prediction.
        hidden_s: exchange that computation hides, seconds of a step.
        needed_bytes: memory of each GPU.
        cores: of each server, busy with preparing the input; None if the work per sample is not known.
        reasons: for the tier.
    """

    candidate: Candidate
    steps: int
    step_s: Amount
    hours: Amount
    cost: Amount
    tier: Literal["calibrated", "extrapolated"]
    parts: dict[str, float]
    hidden_s: float
    needed_bytes: float
    cores: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A candidate that cannot run.

    Attributes:
        why: ``memory``, or ``refused`` if a part of its time is not known.
        missing_bytes: of each GPU's memory; 0 if memory is not the reason.
        reasons: of a refusal.
    """

    candidate: Candidate
    why: Literal["memory", "refused"]
    missing_bytes: float = 0.0
    reasons: tuple[str, ...] = ()


Predict = Callable[[StepFeatures, Candidate], Prediction]
"""A step of a micro-batch's features, as a candidate runs it."""
Fits = Callable[[StepFeatures, Candidate], Fit]
"""Memory of a GPU for a micro-batch's features, as a candidate runs it."""
Spares = Callable[[StepFeatures, Candidate], Strategy]
"""A candidate's strategy with what makes it fit in the least time; unchanged where nothing helps."""
Refuses = Callable[[StepFeatures, Candidate], str]
"""Why a step cannot be spread as a candidate says; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What is to be trained.

    Attributes:
        samples: over all epochs.
        batches: features by size of the micro-batch.
        cpu_seconds_per_sample: of a core, to prepare the input; None if not known.
        predict, fits, spares, refuses: what to ask for times, for memory, for what lowers it, and whether a step
            can be spread at all.
    """

    samples: int
    batches: Batches
    cpu_seconds_per_sample: float | None = None
    predict: Predict
    fits: Fits
    spares: Spares
    refuses: Refuses

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"`samples` must be at least 1, got {self.samples}")
        seconds = self.cpu_seconds_per_sample
        if seconds is not None and not 0 <= seconds < math.inf:
            raise ValueError(f"`cpu_seconds_per_sample` must be 0 or more, got {seconds}")

    def leaner(self, candidate: Candidate) -> Candidate | None:
        """The candidate with what makes it fit; None where nothing helps."""
        features = self.batches.at(candidate.micro_batch)
        if self.refuses(features, candidate):
            return None
        changed = replace(candidate, strategy=self.spares(features, candidate))
        return changed if changed.strategy.is_leaner else None


def predicted(precision: str | None = None) -> Predict:
    """The calibrated predictor.

    Args:
        precision: of products; by default what the program computes in.
    """
    return _asking(Predictor(), precision)


def anchored(anchor: Anchor, batches: Batches, precision: str | None = None) -> Predict:
    """The predictor, adjusted by a measured step of the program.

    Args:
        anchor: the measured step; if it was not traced, the program's step of as many samples replaces it.
        batches: the program.
        precision: of products; by default what the program computes in.

    Raises:
        ValueError: the anchor is a step of another program.
    """
    anchor.check(batches.first)
    if anchor.features is None:
        anchor = replace(anchor, features=batches.step(anchor.batch_size or batches.own))
    return _asking(Predictor(anchor=anchor), precision)


def _asking(predictor: Predictor, precision: str | None) -> Predict:
    def step(features: StepFeatures, candidate: Candidate) -> Prediction:
        return predictor.predict(features, candidate.machines, candidate.strategy, precision=precision)

    return step


_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def refused() -> Refuses:
    """Whether a step can be spread: computed once for each strategy, since neither the GPU nor the batch matters."""
    known: dict[tuple[DataParallel, int, int, int], str] = {}

    def judged(features: StepFeatures, candidate: Candidate) -> str:
        strategy = candidate.strategy
        key = (strategy.data, strategy.tensor, strategy.pipeline, candidate.gpus)
        if key not in known:
            known[key] = refusal(features, candidate.machines, strategy)
        return known[key]

    return judged


def precision_of(features: StepFeatures) -> str:
    """Precision of most products of a step, as the catalogue calls it."""
    flops: dict[str, float] = {}
    for operation in features.operations:
        if operation.kind in MATRIX_KINDS:
            flops[operation.dtype] = flops.get(operation.dtype, 0.0) + operation.flops
    return _PRECISIONS.get(max(flops, key=lambda name: flops[name]), "fp32") if flops else "fp32"


def price(candidate: Candidate, job: TrainingJob) -> PricedPlan | Rejection:
    """A candidate's hours and cost, or why it cannot run."""
    features = job.batches.at(candidate.micro_batch)
    if reason := job.refuses(features, candidate):
        return Rejection(candidate=candidate, why="refused", reasons=(reason,))
    memory = job.fits(features, candidate)
    if memory.missing > 0:
        return Rejection(candidate=candidate, why="memory", missing_bytes=memory.missing)
    step = job.predict(features, candidate)
    if step.tier == "refused":
        return Rejection(candidate=candidate, why="refused", reasons=step.reasons)
    return _plan(candidate, job, step, memory.needed)


def _plan(candidate: Candidate, job: TrainingJob, step: Prediction, needed_bytes: float) -> PricedPlan:
    batch, servers = candidate.global_batch, candidate.servers
    steps = -(-job.samples // batch)
    alone = Amount(likely=step.seconds, low=step.low, high=step.high)
    work_s = None if job.cpu_seconds_per_sample is None else job.cpu_seconds_per_sample * batch / servers
    cores = candidate.offer.cores
    step_s, parts = alone, dict(step.parts)
    if work_s and cores:
        # The slower of the two sets the pace: batches are prepared while steps run.
        step_s = alone.at_least(work_s / cores)
        parts["input"] = parts.get("input", 0.0) + step_s.likely - alone.likely
    hours = step_s.times(steps / 3600)
    assert step.tier != "refused"
    return PricedPlan(
        candidate=candidate, steps=steps, step_s=step_s, hours=hours, cost=hours.times(candidate.per_hour),
        tier=step.tier, parts=parts, hidden_s=step.hidden_s, needed_bytes=needed_bytes,
        cores=None if work_s is None else work_s / step_s.likely, reasons=step.reasons,
    )  # fmt: skip
