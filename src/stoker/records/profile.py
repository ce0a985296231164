"""The records of a profile: what a rank writes while the program runs, and the whole, ``profile.json``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import msgspec

from stoker.core.errors import RunFolderError
from stoker.core.texts import to_json

PROFILE_NAME = "profile.json"
FEATURES_NAME = "features.json"
FORMAT = 1
"""Format of ``profile.json``; a field that changes its meaning raises it."""

Unit = Literal["optimizer step", "batch"]
"""What counts as a step: an optimizer's, or, where none steps, a batch of a loader."""


def rank_name(rank: int) -> str:
    """The name of the file that a rank writes."""
    return f"profile.rank{rank}.json"


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One step by the marks that are always set, in seconds of the host."""

    number: int
    """Number of the step, 0 for the first observed; the same on all ranks."""
    period_s: float
    wait_s: float
    """Inside ``next`` of the program's loaders."""
    wait_cpu_s: float
    """Processor time of the training thread meanwhile: batches are made there."""
    optimizer_s: float
    after_s: float
    """Seconds from the optimizer's end to the next request for a batch."""
    batches: int
    sampled: bool
    """Whether the step was slowed down by being sampled."""


class SampledStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step sampled by torch's profiler, in seconds by label; the labels sum to the period."""

    number: int
    period_s: float
    seconds: dict[str, float]
    """Seconds by label: ``input``, ``copy``, ``compute``, ``memory``, ``host``, ``communication``, ``optimizer``,
    ``other``."""
    hidden_s: float = 0.0
    """Communication that overlaps with other work."""
    ranges: int = 0
    """Events on the training thread; the profiler's overhead is proportional to them."""


class ModuleTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations of one module took, forward and backward, in seconds a step."""

    path: str
    compute_s: float
    memory_s: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.compute_s + self.memory_s


class OperatorTime(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of operation took, in seconds a step."""

    name: str
    label: str
    seconds: float
    calls: float
    """A step."""


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the program's batches are made."""

    site: str = ""
    """``file.py:line`` of the loader that delivered most."""
    dataset: str = ""
    workers: int = 0
    """Data workers: as the program declares them, or, where stoker serves the loader, as many as there were."""
    batch_size: int | None = None
    """Samples of one batch."""
    tier: str = ""
    """How stoker served it; empty where torch did."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Processor time a step of this process and of those that it started, in seconds."""

    process_s: float = 0.0
    children_s: float = 0.0
    others_s: float = 0.0
    """CPU time of all other processes on the cores that this one may use."""
    delayed_s: float = 0.0
    """Seconds that this process and its children were ready to run without a core."""


class RankRecord(msgspec.Struct, kw_only=True):
    """The measurements of one rank."""

    format: int = FORMAT
    run_id: str = ""
    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    hostname: str = ""
    device: str = "cpu"
    """``cpu`` or ``cuda``."""
    device_name: str = ""
    cores: float = 1.0
    threads: int = 1
    """Threads of torch for one operation."""
    precision: str = "fp32"
    """Precision of products: ``fp32``, ``tf32``, ``fp16`` or ``bf16``."""
    unit: Unit = "optimizer step"
    complete: bool = False
    """Whether all requested steps were observed."""
    outcome: str = ""
    """How the program ended where it did before that: ``finished``, or the class of an exception."""
    steps: list[StepTimes] = []
    samples: list[SampledStep] = []
    modules: list[ModuleTime] = []
    operators: list[OperatorTime] = []
    loader: LoaderFacts | None = None
    usage: Usage = Usage()
    optimizers: int = 0
    notes: list[str] = []


class StepDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details that the parts do not show."""

    wait_s: float
    """Part of the input: waiting for batches."""
    copy_s: float
    """Part of the input: copying them to the device."""
    hidden_communication_s: float
    straggler_wait_s: float
    """Part of the communication: straggler wait."""


class Stragglers(msgspec.Struct, frozen=True, kw_only=True):
    """How unequal the ranks' own work is: the time of each in a step without what it waits for others."""

    ratio: float
    """Slowest over mean, in the median of steps."""
    ratio_p95: float
    rank: int
    """The one that is slowest most often."""
    frequency: float
    """Share of sampled steps in which it is the slowest."""
    own_s: list[float]
    """Mean seconds of own work in a step, by rank."""
    part: str
    """In which part the slowest rank is most above the mean of the ranks."""
    part_s: float
    """Seconds above the mean of the ranks in that part."""
    excess_s: float
    """The slowest rank's own time above the mean of the others, in the median of steps."""
    excess_low_s: float
    excess_high_s: float
    """The same at the 5th and the 95th percentile."""
    steps: int


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """The same step, predicted from the program's features."""

    seconds: float
    low: float
    high: float
    tier: str
    parts: dict[str, float]
    basis: str
    """What it was predicted with: the calibration of a machine, or the catalogue's GPU."""
    reasons: list[str] = []


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """Where measurement and prediction are furthest apart."""

    part: str
    predicted_frac: float
    measured_frac: float
    module: str
    """Where in the model most of the gap is; empty where it is spread."""
    text: str


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted gain of an action: the step's seconds after it."""

    seconds: float
    low: float
    high: float
    basis: str
    saved_frac: float
    saved_frac_low: float
    saved_frac_high: float
    price_per_hour: float | None = None
    """Price of everything that the program runs on."""
    saved_per_hour: float | None = None
    """Money saved on an hour's work."""
    saved_per_hour_low: float | None = None
    saved_per_hour_high: float | None = None


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """What to do next."""

    text: str
    command: str
    gain: Gain | None = None
    no_gain: str = ""
    """Why no gain is predicted, where none is."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What limits the step."""

    kind: str
    """``INPUT-BOUND``, ``COMPUTE-BOUND``, ``MEMORY-BOUND``, ``HOST-BOUND``, ``COMMUNICATION-BOUND``, ``STRAGGLER`` or
    ``UNKNOWN``."""
    severity: str
    """``high``, ``moderate`` or empty."""
    share: float
    text: str
    evidence: list[str]
    action: Action


class Profile(msgspec.Struct, kw_only=True):
    """One profile: the content of ``profile.json``."""

    format: int = FORMAT
    stoker: str
    torch: str
    run_id: str
    started_unix_s: float
    program: list[str]
    cwd: str
    hostname: str
    device: str
    device_name: str
    gpu: str
    """The device in stoker's catalogue of GPUs; empty where it is none of them."""
    gpus: int
    """Ranks, each with a device (on CPUs: processes)."""
    cores: float
    threads: int
    """Threads of torch for one operation, on a CPU."""
    precision: str
    unit: Unit
    batch_size: int | None
    """Samples of one rank and step."""
    complete: bool
    outcome: str
    steps: int
    """Behind the step's time."""
    sampled: int
    """Behind its division into parts."""
    seconds: float
    """Time of a step: median over blocks of consecutive steps of each block's mean."""
    low: float
    high: float
    """Shortest and longest block."""
    share: float
    """Share of such intervals that hold the median, for that number of blocks."""
    parts: dict[str, float]
    details: StepDetails
    usage: Usage
    cpu_seconds_per_sample: float | None
    """Processor time of making a sample: of the data workers, or of the training thread while it makes batches."""
    loader: LoaderFacts | None
    operators: list[OperatorTime]
    modules: list[ModuleTime]
    seconds_of_ranks: list[float]
    stragglers: Stragglers | None
    features: str
    """Path of the traced features; empty where there are none."""
    predicted: Predicted | None
    unpredicted: str
    """Why nothing was predicted."""
    residual: Residual | None
    verdict: Verdict | None
    notes: list[str]


def write_record(path: Path, record: RankRecord | Profile) -> None:
    """Writes it atomically.

    Raises:
        OSError: it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    part.write_bytes(msgspec.json.format(to_json(record), indent=1 if isinstance(record, Profile) else -1))
    part.replace(path)


def read_rank(path: Path) -> RankRecord:
    """Reads the file of a rank.

    Raises:
        RunFolderError: it is not readable.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=RankRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"`{path}` cannot be read as the measurements of a rank: {error}", path=str(path)
        ) from error


def read_profile(path: Path) -> Profile:
    """A profile, from its file or from the run folder that holds it.

    Raises:
        RunFolderError: there is none, or it is not readable.
    """
    file = path / PROFILE_NAME if path.is_dir() else path
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Profile)
    except FileNotFoundError:
        where = f"`{path}` holds no `{PROFILE_NAME}`" if path.is_dir() else f"`{path}` is not a file"
        raise RunFolderError(f"{where}; `stoker profile train.py` writes one", path=str(path)) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"`{file}` cannot be read as a profile: {error}", path=str(file)) from error
    if found.format > FORMAT:
        raise RunFolderError(f"`{file}` has format {found.format}, this stoker reads up to {FORMAT}", path=str(file))
    if not (math.isfinite(found.seconds) and found.seconds > 0):
        raise RunFolderError(f"`{file}` has measured no step: the program ended too early", path=str(file))
    return found
