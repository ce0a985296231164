"""What happens to an iteration: events, each of which :meth:`stoker.feed.state.machine.Machine.on` takes in.

Workers go by their number in the ledger, items by theirs in the order, leases by their generation. A work item and
what a probe has found are handed through unread.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from stoker.core.errors import WorkerStartError
from stoker.feed.program import WorkItem
from stoker.feed.scaling import Decision
from stoker.feed.state.ledger import FreeSlots, Ledger


def snake_case(name: str) -> str:
    """``NameOfClass`` as ``name_of_class``: handlers are called after what they handle."""
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


class Purpose(enum.Enum):
    """What a worker is started for."""

    WORK = "work"
    PROBE = "probe"
    """To make one batch apart from the others, for a comparison."""
    REPEAT = "repeat"
    """To make the first batch again, for a comparison whose first attempt was lost."""


class Event(msgspec.Struct, gc=False):
    """One of the below."""


class Opened(Event):
    """The iteration has its workers' processes; ``active`` are those of an earlier one that may get leases."""

    active: tuple[int, ...] = ()


class Asked(Event):
    """The program asks for the next batch; with ``refill`` another item is drawn for the one that it gets."""

    refill: bool = True


class Wanted(Event):
    """Draw and lease as much as may be in flight."""


class Drawn(Event):
    """The order gave an item; None: it gives no more for now, or at all where it is ``exhausted``."""

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
    """A worker gives a lease back that it had not begun."""

    worker: int
    generation: int


class Polled(Event):
    """All that had arrived was taken in."""


class Born(Event):
    """A worker was started."""

    worker: int
    worker_id: int
    purpose: Purpose = Purpose.WORK


class Refused(Event):
    """A worker could not be started; ``why`` is empty where there can be none for now (template gone, rows taken)."""

    why: str = ""
    purpose: Purpose = Purpose.WORK


class Severed(Event):
    """A worker can't be told anything any more; whether it still writes is not known."""

    worker: int


class Loss(msgspec.Struct, gc=False):
    """A worker that is gone for certain."""

    worker: int
    expected: bool = False
    """It was told to stop."""
    left: bool = False
    """It ended by itself, as it should."""


class Departed(Event):
    """Workers are gone, by one cause: a host may take many with it."""

    losses: tuple[Loss, ...]


class Diagnosed(Event):
    """Why the worker of a :class:`~stoker.feed.state.instructions.Lost` ended, as far as can be told."""

    worker: int
    pid: int
    cause: str
    seq: int = -1
    """The item that it was making; -1 for none."""
    for_memory: bool = False
    blames: bool = True
    """Whether that item may be the reason."""


class TemplateLost(Event):
    """No worker can be started any more."""


class Restarted(Event):
    """Other processes take over from those that were closed."""

    ledger: Ledger


class Retiring(Event):
    """A worker is near its memory budget."""

    worker: int


class RingMade(Event):
    """Leases get slots of another ring; None for no slots."""

    slots: FreeSlots | None


class Bounded(Event):
    """What memory allows."""

    num_slots: int
    in_flight: int | None
    """Items that may be leased or ready; None for any number."""
    most_busy: int | None
    """Workers that may be at work; None for any number."""


class Decided(Event):
    """The policy has decided."""

    decision: Decision


class ProbeWanted(Event):
    """The next item to be leased is the one to compare."""


class Drew(Event):
    """Whether the first batch drew from the global random streams."""

    drew: bool


class Evidence(Event):
    """One side of a comparison has found something."""

    role: str
    found: Any


class Sized(Event):
    """The first sample of a comparison is large, and its worker waits."""

    worker: int
    sample_bytes: int
    samples: int
    """That a worker has in memory at a time."""
    free_bytes: int


class ProbeBroken(Event):
    """A mistake of stoker's own: samples are not compared."""


class Tick(Event):
    """Time has passed; while a comparison is waited for, it may be over."""

    stall_timeout_s: float


class Pinned(Event):
    """A worker says whether it goes on as one of the pinned tier."""

    worker: int
    agreed: bool


class HandedOver(Event):
    """All of them do."""


class Left(Event):
    """The program leaves the iteration."""


class Skipped(Event):
    """Somebody else has delivered the items below ``seq``."""

    seq: int
    drawn: int


class LifeEvent(msgspec.Struct, gc=False):
    """What :meth:`stoker.feed.state.life.Life.on` takes in; one of the below."""


class Begun(LifeEvent):
    """The program has asked for an iterator."""


class TrialBegun(LifeEvent):
    """The dataset was looked at before the first batch; the fields are those of a trial's arguments."""

    length: int | None
    free_bytes: int
    watch_s: float


class Next(LifeEvent):
    """The program asks for the next batch, having got so many."""

    yielded: int


class FirstMade(LifeEvent):
    """The first batch waits; ``is_safe``: it is the same, however the comparison of samples ends."""

    is_safe: bool


class Settled(LifeEvent):
    """The comparison of samples is over: elastic, or not."""

    elastic: bool


class MadeHere(LifeEvent):
    """On trial, a batch was made in the training process in so many seconds."""

    seconds: float


class Examined(LifeEvent):
    """That batch was looked at; the fields are those of :meth:`stoker.feed.state.trial.Trial.seen`."""

    batch_bytes: int
    drew: bool
    is_plain: bool
    changed: bool
    watch_s: float


class NotExamined(LifeEvent):
    """Stoker failed to look at it, or at the dataset before the first one."""


class Started(LifeEvent):
    """Workers make the batches of a loader that declares none."""


class NotStarted(LifeEvent, gc=True):
    """By a mistake of stoker's own, they don't."""

    error: Exception


class TwinCompared(LifeEvent):
    """The batch that was made in both places: whether it differs."""

    differs: bool


class Looked(LifeEvent):
    """What a loader without declared workers depends on: whether it has changed since they were started."""

    changed: bool


class Repeated(LifeEvent):
    """A worker's batch was made here as well: whether it differs."""

    differs: bool


class Stranded(LifeEvent, gc=True):
    """Workers are gone, and others can't be started."""

    error: WorkerStartError


class Over(LifeEvent):
    """The iteration is over; ``seen``: the program has been told so, not left before."""

    seen: bool = False
