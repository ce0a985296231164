"""Events of an iteration, which its :class:`~stoker.feed.state.machine.Machine` and its ``Life`` handle.

Workers are named by their number in the ledger, items by theirs in the order, leases by their generation. Work items
and the findings of a probe are passed on unread.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from stoker.core.errors import WorkerStartError
from stoker.core.slots.free_slots import FreeSlots
from stoker.feed.program import WorkItem
from stoker.feed.scaling import Decision
from stoker.feed.state.ledger import Ledger


def snake_case(name: str) -> str:
    """``NameOfClass`` as ``name_of_class``: handlers are named after what they handle."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


class Purpose(enum.Enum):
    """Why a worker is started."""

    WORK = "work"
    PROBE = "probe"
    """To make one batch separately, for a comparison."""
    REPEAT = "repeat"
    """To remake the first batch, for a comparison whose first attempt was lost."""


class Event(msgspec.Struct, gc=False):
    """Base class of events of the machine."""


class Opened(Event):
    """The iteration has its processes; ``active``: workers of an earlier one that may get leases."""

    active: tuple[int, ...] = ()


class Asked(Event):
    """The program requests the next batch; with ``refill``, another item is drawn in place of the delivered one."""

    refill: bool = True


class Wanted(Event):
    """As many items as may be in flight are to be drawn and leased."""


class Drawn(Event):
    """The order gave an item; None: it has none for now, or (``exhausted``) none any more."""

    work: WorkItem | None
    drawn: int
    """Items drawn so far."""
    exhausted: bool = False


class Arrived(Event):
    """A worker has made the batch of a lease."""

    worker: int
    generation: int
    stamp_s: float
    """When it was made."""
    check: int = 0


class Failed(Event):
    """The user's code raised in a worker."""

    worker: int
    generation: int


class ShardEnded(Event):
    """A worker's shard of a stream is exhausted."""

    worker: int
    generation: int


class Returned(Event):
    """A worker returns a lease that it has not begun."""

    worker: int
    generation: int


class Polled(Event):
    """All that had arrived was processed."""


class Born(Event):
    """A worker was started."""

    worker: int
    worker_id: int
    purpose: Purpose = Purpose.WORK
    away: bool = False


class Refused(Event):
    """A worker could not be started; ``why`` is empty if none can be for now (template gone, rows taken)."""

    why: str = ""
    purpose: Purpose = Purpose.WORK
    away: bool = False


class Severed(Event):
    """A worker's socket is closed: it can't be reached, but may still write to its slots."""

    worker: int


class Loss(msgspec.Struct, gc=False):
    """A worker that is certainly dead."""

    worker: int
    expected: bool = False
    """It had been asked to stop."""
    left: bool = False
    """It exited by itself, with status 0."""


class Departed(Event):
    """Workers are gone, for one cause: the loss of a host may take many."""

    losses: tuple[Loss, ...]


class Diagnosed(Event):
    """Why the worker of a :class:`~stoker.feed.state.instructions.Lost` ended, as far as known."""

    worker: int
    pid: int
    cause: str
    seq: int = -1
    """The item that it was making; -1 for none."""
    for_memory: bool = False
    blames: bool = True
    """Whether that item may be the cause."""


class TemplateLost(Event):
    """The template is gone: no worker can be started any more."""


class Restarted(Event):
    """New processes replace those that were closed."""

    ledger: Ledger


class Retiring(Event):
    """A worker's memory is near its budget."""

    worker: int


class RingMade(Event):
    """Leases get slots of a new ring from now on; None for no slots."""

    slots: FreeSlots | None


class Bounded(Event):
    """The limits that memory sets."""

    num_slots: int
    in_flight: int | None
    """Items that may be leased or ready; None for no limit."""
    most_busy: int | None
    """Workers that may work at a time; None for no limit."""


class Decided(Event):
    """The scaling policy has decided."""

    decision: Decision


class ProbeWanted(Event):
    """The next leased item is the one to compare."""


class Drew(Event):
    """Whether the first batch drew from the global random streams."""

    drew: bool


class Evidence(Event):
    """One side of a comparison reports what it found."""

    role: str
    found: Any


class Sized(Event):
    """The first sample of a comparison is large; its worker waits for a decision."""

    worker: int
    sample_bytes: int
    samples: int
    """Samples that a worker has in memory at a time."""
    free_bytes: int


class ProbeBroken(Event):
    """The comparison failed, by an error of stoker: samples are not compared."""


class Tick(Event):
    """Time has passed while the program waits for a comparison, which may be over."""

    stall_timeout_s: float


class Pinned(Event):
    """A worker answers whether it can continue in the pinned tier."""

    worker: int
    agreed: bool


class HandedOver(Event):
    """All workers continue in the pinned tier."""


class Left(Event):
    """The program leaves the iteration."""


class Skipped(Event):
    """The items below ``seq`` were delivered by torch's workers."""

    seq: int
    drawn: int


class LifeEvent(msgspec.Struct, gc=False):
    """Base class of events of a :class:`stoker.feed.state.life.Life`."""


class Begun(LifeEvent):
    """The program has requested an iterator."""


class TrialBegun(LifeEvent):
    """The dataset was examined before the first batch; the fields are arguments of a trial."""

    length: int | None
    free_bytes: int
    watch_s: float


class Next(LifeEvent):
    """The program requests the next batch, after ``yielded`` batches."""

    yielded: int


class FirstMade(LifeEvent):
    """The first batch is ready; ``is_safe``: it is the same, however the comparison of samples ends."""

    is_safe: bool


class Settled(LifeEvent):
    """The comparison of samples is over; whether the tier is elastic."""

    elastic: bool


class MadeHere(LifeEvent):
    """During a trial, a batch was made in the training process, in ``seconds``."""

    seconds: float


class Examined(LifeEvent):
    """That batch was examined; the fields are the arguments of :meth:`stoker.feed.state.trial.Trial.seen`."""

    batch_bytes: int
    drew: bool
    is_plain: bool
    changed: bool
    watch_s: float


class NotExamined(LifeEvent):
    """Stoker failed to examine that batch, or the dataset before the first one."""


class Started(LifeEvent):
    """Workers now make the batches of a loader that declares none."""


class NotStarted(LifeEvent, gc=True):
    """Those workers could not be started, by an error of the host or of stoker."""

    error: Exception


class TwinCompared(LifeEvent):
    """The batch that a worker and the training process both made was compared."""

    differs: bool


class Looked(LifeEvent):
    """Whether objects behind the batches of a loader without declared workers have changed since workers started."""

    changed: bool


class Repeated(LifeEvent):
    """A worker's batch was remade in the training process; whether it differs."""

    differs: bool


class Stranded(LifeEvent, gc=True):
    """Workers are gone, and no others can be started."""

    error: WorkerStartError


class Over(LifeEvent):
    """The iteration is over; ``seen``: the program reached its end, and did not leave before."""

    seen: bool = False
