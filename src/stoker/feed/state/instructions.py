"""What is to be done: instructions, to be carried out in their order by a shell."""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.feed.program import WorkItem
from stoker.feed.state.events import Purpose
from stoker.feed.state.ledger import Item

Role = Literal["beside", "apart"]


class Instruction(msgspec.Struct, gc=False):
    """One of the below."""


class Draw(Instruction):
    """Ask the order for an item: :class:`~stoker.feed.state.events.Drawn` follows."""


class Spawn(Instruction):
    """Start a worker: ``Born`` or ``Refused`` follows."""

    worker_id: int
    purpose: Purpose = Purpose.WORK


class Lease(Instruction):
    """Have a worker make an item, in a slot (-1: in a memory of its own)."""

    worker: int
    seq: int
    generation: int
    ring: int
    slot: int
    work: WorkItem
    digest: bool = False
    """It is the one that is compared."""
    repeat: bool = False
    """It was delivered: its worker is only to get into the same state."""


class Keep(Instruction):
    """The batch that has arrived is the item's."""

    seq: int


class Drop(Instruction):
    """The batch that has arrived is nobody's any more; its slot is free."""


class Ignore(Instruction):
    """Nothing has arrived: a repeated item, or an answer to nothing."""


class Discard(Instruction):
    """The item's batch, which was kept, is nobody's any more."""

    seq: int


class Free(Instruction):
    """Nobody writes a slot any more, and it holds nothing."""

    ring: int
    slot: int


class Deliver(Instruction):
    """The program gets the item's batch."""

    item: Item


class Wait(Instruction):
    """The next batch is not made yet."""


class End(Instruction):
    """There is none."""


class Stop(Instruction):
    """Have a worker finish what it has and leave."""

    worker: int


class Kill(Instruction):
    """End a worker at once."""

    worker: int
    why: str


class Forget(Instruction):
    """Have all workers give back what they have not begun."""


class ShareRing(Instruction):
    """Make the ring known to all workers."""


class Probe(Instruction):
    """Have a worker make one side of the comparison."""

    worker: int
    role: Role
    work: WorkItem
    other: WorkItem | None


class LetGoOn(Instruction):
    """Have a worker go on that waits to hear whether its large samples are compared."""

    worker: int


class Pin(Instruction):
    """Ask a worker to go on as one of the pinned tier."""

    worker: int


class Lost(Instruction):
    """A worker was lost, not told to leave: find out why. ``Diagnosed`` follows."""

    worker: int
    released: int
    """Items that are made again."""


class Blame(Instruction):
    """A worker died at this item."""

    item: Item


class Judge(Instruction):
    """The comparison is over: with what both sides found, or with why there is nothing, as half a sentence."""

    why_not: str = ""


class Mishap(Instruction, gc=True):
    """The comparison of samples has failed, by a mistake of stoker's own: tell of it."""

    error: Exception


class Notice(Instruction):
    """Tell a person."""

    text: str


class Raise(Instruction, gc=True):
    """Raise an error in the program."""

    error: Exception


class Open(Instruction):
    """Have the iteration's workers started, and first items leased."""


class OpenHere(Instruction):
    """No workers are wanted: have the iteration made in the training process."""


class BeginTrial(Instruction):
    """Look at what batches may depend on: ``TrialBegun`` or ``NotExamined`` follows."""


class Start(Instruction):
    """Have workers make what the training process would: ``Started`` or ``NotStarted`` follows."""


class Take(Instruction):
    """Deliver the next batch that workers make; ``Stranded`` may follow."""

    repeat: bool = False
    """Make it in the training process as well: ``Repeated`` follows."""


class MakeHere(Instruction):
    """Make the next batch in the training process, and deliver it."""


class MakeTwin(Instruction):
    """The same for one that workers make as well."""


class CompareTwin(Instruction):
    """Take theirs, and drop it: ``TwinCompared`` follows."""


class AwaitFirst(Instruction):
    """Wait for the first batch: ``FirstMade`` follows."""


class Settle(Instruction):
    """Wait for the comparison of samples: ``Settled`` follows."""


class GoPinned(Instruction):
    """Go on with as many workers as declared, each in the state that torch's would be in."""


class Leave(Instruction):
    """End the workers; what they have not delivered is made in the training process."""


class Dismiss(Instruction):
    """Have the workers of an earlier iteration end that can't be used again."""


class Examine(Instruction):
    """Look at the batch that was made, and at what it may depend on: ``Examined`` follows."""


class Look(Instruction):
    """Look at what batches may depend on: ``Looked`` follows."""


class Stay(Instruction):
    """Tell that the loader stays in the training process, and why; only for now with ``keep_trying``."""

    why: str
    keep_trying: bool = False


class Failed(Instruction, gc=True):
    """A part of stoker has failed, so the loader stays in the training process: tell of it."""

    part: str
    error: Exception
