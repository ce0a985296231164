"""The report on a fleet of jobs: plain records, made by ``perf.fleet`` and shown by ``ui``.

Shares are in [0, 1]. "At job level" every job counts once; "at GPU level" it counts as often as it has GPUs, or by its
GPU-seconds where the table has durations.
"""

from __future__ import annotations

import msgspec


class Constant(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the figures rest on."""

    name: str
    value: str
    """The value with its unit, for display."""
    basis: str
    where: str
    mark: str
    """Shown after the value everywhere; empty for facts."""


OUTCOMES = {
    "gains": "the job is faster, and its weights fit a GPU as far as their size is known",
    "too large": "would gain, but its weights do not fit the memory of a GPU",
    "input contends": "slower per GPU: the input of a server's GPUs comes over one PCIe root",
    "slower": "slower per GPU",
    "fewer GPUs": "faster per GPU, but one server has fewer GPUs than the job had",
}
"""The outcomes of a port, and their meaning."""


class JobGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one class."""

    name: str
    jobs: int
    gpus: int
    job_frac: float
    gpu_frac: float
    """Share of the weight at GPU level."""


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a class of jobs goes; the shares of the parts sum to 1."""

    group: str
    at_job: dict[str, float]
    at_gpu: dict[str, float]


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A cumulative distribution: of a class's jobs, how many have at most this share of their time in a part."""

    group: str
    part: str
    jobs_frac: list[float]
    """Fraction of jobs for shares of 0, 1, … 100 %."""


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """Which resource takes most of a job's step, counted over the jobs of a class."""

    group: str
    at_job: dict[str, float]
    at_gpu: dict[str, float]


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """Quantiles and mean of a gain (a factor; above 1 is faster)."""

    p10: float
    p25: float
    median: float
    p75: float
    p90: float
    mean: float
    faster_frac: float
    """Share of the jobs that become faster."""


class PortedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of a port, as an example."""

    job: str
    gpus_before: int
    gpus_after: int
    per_gpu: float
    whole: float
    outcome: str


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes of a class's jobs on another architecture."""

    source: str
    target: str
    jobs: int
    per_gpu: Distribution
    """Gain of one GPU's step."""
    whole: Distribution
    """Gain of the job's throughput, which may have fewer GPUs there."""
    outcomes: dict[str, int]
    """Jobs by outcome, a word of ``OUTCOMES``."""
    bins: list[tuple[str, float]]
    """Shares of the jobs by gain of the job."""
    best: list[PortedJob]
    worst: list[PortedJob]


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of another rate of one resource on the fleet."""

    resource: str
    before: str
    after: str
    factor: float
    mark: str
    speedup: dict[str, float]
    """Mean over the jobs of each class and of all."""
    gpu_time_saved_frac: float
    """Negative where it is a downgrade."""
    faster_frac: float
    """Share of the jobs that gain more than 5 %."""


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """How much faster a class's jobs get when one resource is twice as fast, the most telling resource first."""

    group: str
    speedup: list[tuple[str, float]]


class PublishedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure and the one computed here."""

    what: str
    published: str
    found: str
    mark: str
    off_points: float
    """Difference from the published figure, in percentage points."""


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the report without the columns that it needs."""

    what: str
    needs: str


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report."""

    name: str
    """The table's file, or a description of the synthetic fleet."""
    form: str
    """How the table was read."""
    synthetic: bool
    """Whether it is synthetic: generated from published figures, no job in it ever ran."""
    overlap: str
    weighting: str
    """What the GPU level counts."""
    jobs: int
    gpus: int
    groups: list[JobGroup]
    part_names: dict[str, str]
    """Parts of a step as people read them."""
    resource_names: dict[str, str]
    """What a step can take longest of, as people read it, in the order in which it is shown."""
    parts: list[str] = []
    """Parts of a step, in the order in which they are shown."""
    shares: list[Shares] = []
    curves: list[Curve] = []
    bottlenecks: list[Bottleneck] = []
    ports: list[Port] = []
    upgrades: list[Upgrade] = []
    sensitivities: list[Sensitivity] = []
    comparisons: list[PublishedFigure] = []
    constants: list[Constant] = []
    notes: list[str] = []
    missing: list[Missing] = []
