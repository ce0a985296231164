"""Instructions: the output of the state machines, carried out in order by a shell."""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.feed.program import WorkItem
from stoker.feed.state.events import Purpose
from stoker.feed.state.ledger import Item

Role = Literal["beside", "apart"]


class Instruction(msgspec.Struct, gc=False):
    """Base class of the instructions below."""


class Draw(Instruction):
    """Ask the order for an item: :class:`~stoker.feed.state.events.Drawn` follows."""


class Spawn(Instruction):
    """Start a worker: ``Born`` or ``Refused`` follows."""

    worker_id: int
    purpose: Purpose = Purpose.WORK
    away: bool = False
    """On another machine."""


class Lease(Instruction):
    """Have a worker make an item, in a slot (-1: in separate memory)."""

    worker: int
    seq: int
    generation: int
    ring: int
    slot: int
    work: WorkItem
    digest: bool = False
    """The item is the compared one."""
    repeat: bool = False
    """The item was delivered: making it again only restores its worker's state."""


class Keep(Instruction):
    """Keep the batch that has arrived as the item's."""

    seq: int


class Drop(Instruction):
    """Drop the batch that has arrived, which nobody waits for any more; its slot becomes free."""


class Ignore(Instruction):
    """Keep nothing of what has arrived: a repeated item, or an answer to no lease."""


class Discard(Instruction):
    """Drop the kept batch of an item, which nobody waits for any more."""

    seq: int


class Free(Instruction):
    """Free a slot: it holds no batch, and no worker writes to it any more."""

    ring: int
    slot: int


class Deliver(Instruction):
    """Give the item's batch to the program."""

    item: Item


class Wait(Instruction):
    """Wait: the next batch is not made yet."""


class End(Instruction):
    """End the iteration: there is no next batch."""


class Stop(Instruction):
    """Have a worker finish what it has and leave."""

    worker: int


class Kill(Instruction):
    """End a worker at once."""

    worker: int
    why: str


class Forget(Instruction):
    """Have all workers return the leases that they have not begun."""


class ShareRing(Instruction):
    """Share the ring with all workers."""


class Probe(Instruction):
    """Have a worker make one side of the comparison."""

    worker: int
    role: Role
    work: WorkItem
    other: WorkItem | None


class LetGoOn(Instruction):
    """Let a worker continue that waits for the decision about its large samples."""

    worker: int


class Pin(Instruction):
    """Ask a worker whether it can continue in the pinned tier."""

    worker: int


class Lost(Instruction):
    """Find out why a worker was lost that had not been asked to leave: ``Diagnosed`` follows."""

    worker: int
    released: int
    """Number of its items, which are made again."""


class Blame(Instruction):
    """Blame an item for the death of a worker."""

    item: Item


class Judge(Instruction):
    """End the comparison: by what both sides found, or without a result; ``why_not`` is half a sentence."""

    why_not: str = ""


class Mishap(Instruction, gc=True):
    """Report that the comparison of samples has failed by an error of stoker."""

    error: Exception


class Notice(Instruction):
    """Show one line to the user."""

    text: str


class Raise(Instruction, gc=True):
    """Raise an error in the program."""

    error: Exception


class Open(Instruction):
    """Start the iteration's workers and lease the first items."""


class OpenHere(Instruction):
    """Make the iteration in the training process, without workers."""


class BeginTrial(Instruction):
    """Examine what batches may depend on: ``TrialBegun`` or ``NotExamined`` follows."""


class Start(Instruction):
    """Start workers for a loader that declares none: ``Started`` or ``NotStarted`` follows."""


class Take(Instruction):
    """Deliver the next batch from the workers; ``Stranded`` may follow."""

    repeat: bool = False
    """Make it in the training process as well: ``Repeated`` follows."""


class MakeHere(Instruction):
    """Make the next batch in the training process, and deliver it."""


class MakeTwin(Instruction):
    """Make and deliver the next batch in the training process while workers make it as well."""


class CompareTwin(Instruction):
    """Compare the workers' copy of it, and drop that copy: ``TwinCompared`` follows."""


class AwaitFirst(Instruction):
    """Wait for the first batch: ``FirstMade`` follows."""


class Settle(Instruction):
    """Wait for the comparison of samples: ``Settled`` follows."""


class GoPinned(Instruction):
    """Continue with as many workers as declared, each in the state that torch's worker would be in."""


class Leave(Instruction):
    """End the workers; what they have not delivered is made in the training process."""


class Dismiss(Instruction):
    """End the workers of an earlier iteration that can't be reused."""


class Examine(Instruction):
    """Examine the batch that was made, and what it may depend on: ``Examined`` follows."""


class Look(Instruction):
    """Check whether what batches may depend on has changed: ``Looked`` follows."""


class Stay(Instruction):
    """Report that the loader stays in the training process, and why; with ``keep_trying``, only for now."""

    why: str
    keep_trying: bool = False


class Failed(Instruction, gc=True):
    """Report that a part of stoker has failed, and that the loader therefore stays in the training process."""

    part: str
    error: Exception
