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
