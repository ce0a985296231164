"""The answer to how to run a job: plain records, made by ``perf.planning`` and shown by ``ui``.

Hours and cost are those of the whole job; cost is in the report's currency.
"""

from __future__ import annotations

import msgspec


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A figure and the ends of its interval."""

    likely: float
    low: float
    high: float


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the job, and what it takes."""

    offer: str
    """Kind of server, as the list of prices calls it."""
    gpu: str
    gpus: int
    servers: int
    """Paid for, whole."""
    family: str
    """Kind of strategy."""
    data: str
    """How replicas are kept alike."""
    tensor: int
    pipeline: int
    replicas: int
    micro_batch: int
    """Samples that a replica computes at once."""
    accumulation: int
    global_batch: int
    recomputed: list[str]
    """Modules whose forward pass is repeated in the backward pass."""
    products_kept: list[str] = []
    """Those that are repeated but for their matrix products and convolutions."""
    used_up: bool = False
    """Whether each gradient is applied and freed inside the backward pass."""
    away: list[str] = []
    """Modules whose saved activations lie in host memory until their backward pass."""
    states_away: bool = False
    """Whether states of the optimizer lie in host memory between updates."""
    steps: int
    step_s: Span
    hours: Span
    cost: Span
    tier: str
    parts: dict[str, float]
    """Seconds of a step by what they are spent on."""
    hidden_s: float
    """Exchange that overlaps with computation, seconds of a step."""
    needed_bytes: float
    """Memory of each GPU."""
    memory_bytes: float
    """What the GPU has."""
    cores: float | None
    """CPU cores of each server that prepare the input; None if the work per sample is unknown."""
    offered_cores: float | None
    reasons: list[str]
    """Reasons for the tier."""


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that answers a question."""

    role: str
    """The question, such as "cheapest within 12 h"."""
    plan: PlanRow
    keeps: bool
    """Whether it keeps the deadline and the budget."""
    remarks: list[str]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the candidates of one kind of strategy."""

    name: str
    tried: int
    priced: int
    on_front: int
    why: str
    """One sentence: why none of it is worth taking; empty where some is."""


class Dot(msgspec.Struct, frozen=True, kw_only=True):
    """A plan in the picture: the best of its kind of server, number of GPUs and kind of strategy."""

    offer: str
    gpu: str
    gpus: int
    family: str
    tier: str
    hours: float
    cost: float


class NearestMiss(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate that lacks least where nothing can run at all."""

    offer: str
    gpu: str
    gpus: int
    family: str
    missing_bytes: float
    needed_bytes: float
    remedies: list[str]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "which hardware, how many GPUs, which strategy?"."""

    name: str
    samples: int
    batch: str
    """What happens to the batch, as a sentence."""
    currency: str
    is_money: bool
    """Whether prices are known; GPU-hours are counted otherwise."""
    prices: str
    """Source and date of the prices."""
    budget: float | None
    deadline_h: float | None
    sure: bool
    """Whether the upper ends of intervals must keep deadline and budget."""
    share: float
    """How often a measurement should lie inside the intervals."""
    candidates: int
    unfit: int
    """Candidates that do not fit the memory of their GPUs."""
    refused: int
    """Candidates without a prediction."""
    picks: list[Pick]
    front: list[PlanRow]
    """Plans that no other beats in both time and money, the fastest first."""
    dots: list[Dot]
    families: list[Family]
    advice: list[str]
    """What binds, and what relaxing it buys."""
    miss: NearestMiss | None
    """Where nothing can run."""
    notes: list[str]
