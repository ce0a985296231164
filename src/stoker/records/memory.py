"""What a program's memory is predicted to be: plain records, made by ``perf`` and shown by ``ui``.

Bytes are of one GPU. The peak is what the process takes of the device: tensors, what the allocator reserves beyond
them, and the context.
"""

from __future__ import annotations

import msgspec

from stoker.records.fitting import FitPlan


class MemoryShare(msgspec.Struct, frozen=True):
    """A part of the peak."""

    name: str
    bytes: int


class HeldTooLong(msgspec.Struct, frozen=True, kw_only=True):
    """A variable that keeps memory which nothing reads any more."""

    variable: str
    bytes: int
    assigned: str
    """Line that assigns it; empty if it is not known."""
    last_used: str
    """Line after which it can be deleted."""
    saves_bytes: int
    """By how much the peak falls then."""


class GrowingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A container of the program that holds more after each step."""

    variable: str
    bytes: int
    """That each step adds, with what its tensors keep alive."""
    line: str
    """That adds to it; empty if it is not known."""
    keeps_graph: bool
    """Whether its tensors keep the graph that made them."""
    steps: int | None = None
    """After so many more the device is full; None without a device, or where it does not even fit now."""


class MemoryRemedy(msgspec.Struct, frozen=True, kw_only=True):
    """What lowers the peak."""

    name: str
    how: str
    """What does it: a setting, an argument, a function of torch."""
    saves_bytes: int
    peak_bytes: int
    step_frac: float | None
    """Time that it adds, as a share of the step's, for ranks with DDP's exchange where it can be predicted; None if no
    GPU is known to predict it for."""
    losses: str
    """``equal`` bit for bit, or how far they may differ."""
    fits: bool | None
    """None if no device was named."""
    certified: bool = False
    """Whether the program was traced in this form; otherwise the peak is predicted from its trace as it is."""
    course: list[int] = []
    """Bytes of tensors at each of the report's moments; empty where they are those without the remedy."""


class MemoryPass(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the program's run, at its fullest."""

    name: str
    """``first step``, with all before it; ``later steps``; ``evaluation``."""
    bytes: int
    """Tensors alone."""
    line: str
    """Line that reaches it; empty if it is not known."""


class MemoryMoment(msgspec.Struct, frozen=True, array_like=True):
    """What is alive at one moment of the step."""

    at_frac: float
    """Share of the step's events that are past."""
    bytes: list[int]
    """By category, in the order of :attr:`MemoryReport.drawn`."""
    phase: str = ""
    """Pass of the call before it."""


class ArenaSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What a step takes in one planned piece of memory, and what torch's allocator reserves for it; no context."""

    bound_bytes: int
    """Below which no plan can be: the most that is alive at once, or more where that is proven."""
    plan_bytes: int
    default_bytes: int
    """Reserved by the allocator as it is, replayed."""
    expandable_bytes: int
    """Reserved with expandable segments, replayed."""

    @property
    def is_smallest(self) -> bool:
        """Whether the plan is certified to be the smallest."""
        return self.plan_bytes <= self.bound_bytes


class MemoryReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to "does this program fit, and what holds its memory?"."""

    name: str
    device: str
    """Name of the GPU; empty where a size or nothing was given."""
    available_bytes: int | None
    ranks: int
    batch_size: int
    peak_bytes: int
    fits: bool | None
    phase: str
    """In which the peak is reached: ``start``, a phase of the step, or ``evaluation``."""
    module: str
    line: str
    categories: list[MemoryShare]
    """They sum to the peak."""
    modules: list[MemoryShare]
    """Shares of tensors alone, the largest first."""
    lines: list[MemoryShare]
    """Shares of tensors alone, the largest first."""
    before_bytes: int
    """The allocator's peak before the traced step: in the program's start and its first step."""
    held: list[HeldTooLong]
    grows: list[GrowingMemory] = []
    """What each step adds to, the most first; the peak is that of the second step."""
    remedies: list[MemoryRemedy]
    plan: FitPlan | None = None
    """What ``--fit auto`` does, and the peak that it promises; None without a device, and for several ranks."""
    largest_batch: int | None
    """Samples that fit; None if no device was named or no second size could be traced."""
    largest_fitted: int | None
    """The same with all that ``--fit auto`` may do."""
    largest_traced: bool = False
    """Whether steps of these sizes were traced; otherwise they follow from two others."""
    passes: list[MemoryPass] = []
    """In the order in which the program comes to them."""
    arena: ArenaSizes | None = None
    """None if the step was not placed."""
    drawn: list[str]
    """Categories of :attr:`moments`."""
    moments: list[MemoryMoment]
    peak_frac: float | None
    """Share of the step's events up to the peak; None if it is before the step."""
    notes: list[str]
    """What was assumed, as sentences without their full stops."""


class AllocatorChoice(msgspec.Struct, frozen=True):
    """What the allocator would have had from the device for the same requests."""

    name: str
    bytes: int


class SnapshotMoment(msgspec.Struct, frozen=True, array_like=True):
    """What is alive at one moment of a snapshot's history."""

    at_frac: float
    """Share of the events that are past."""
    bytes: list[int]
    """By line, in the order of :attr:`SnapshotReport.shown`, the rest last."""
    reserved_bytes: int


class SnapshotReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a memory snapshot of torch says of one device."""

    name: str
    device: int
    others: list[int]
    """Other devices that the process had memory of."""
    events: int
    asked_bytes: int | None
    """What did not fit when memory ran out for the last time; None if it never did."""
    asked_line: str
    free_bytes: int | None
    """Bytes of the device that were free at that time."""
    at: int
    """Events before the moment of this report: when memory ran out, else the peak."""
    line: str
    """That reached the peak; empty if it is not known, or memory ran out."""
    peak_bytes: int
    """Requested bytes at that moment."""
    reserved_bytes: int
    """What the allocator had from the device at that moment."""
    most_reserved_bytes: int
    parts: list[MemoryShare]
    """They sum to ``reserved_bytes``."""
    lines: list[MemoryShare]
    """They sum to ``peak_bytes``, the largest first."""
    expandable: bool
    """Whether segments grew in the recorded run."""
    choices: list[AllocatorChoice]
    """The recorded run first."""
    shown: list[str]
    """Lines of :attr:`moments`."""
    moments: list[SnapshotMoment]
    notes: list[str]
    """What was assumed, as sentences without their full stops."""


class AskedMemory(msgspec.Struct, frozen=True):
    """What an error of torch's allocators says."""

    bytes: int | None
    """None if it does not say so."""
    device: str
    """Kind of the device: ``cpu``, ``cuda``."""
    index: int | None = None
    """Number of the device; None if it is not named."""
    capacity_bytes: int | None = None
    """What the device or the process may have in all."""
    idle_bytes: int | None = None
    """Reserved by torch's allocator and in no tensor."""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What a program held when it ended because memory ran out."""

    asked: AskedMemory
    line: str
    """Innermost line of the program; empty if it is not known."""
    categories: list[MemoryShare]
    """What tensors were counted, by what they are for."""
    variables: list[MemoryShare]
    """Variables of the functions that were running, by what they hold beyond parameters and their like."""
    command: str
    """To type next; empty for none."""
    peak_bytes: int | None = None
    """Predicted with that command; None where nothing is."""
    step_frac: float | None = None
    """Time that it adds, as a share of a step's; None where nothing predicts it."""
    fit_command: str = ""
    """Makes the program fit the same memory; empty for none."""


class KilledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended without a word while the kernel killed processes for lack of memory."""

    folder: str
    after_s: float
    """From its start to its last record."""
    kills: int
    """Processes that the kernel has killed since it began, its data workers aside."""
    memory_bytes: int
    """What the process could have had; 0 if it is not known."""
