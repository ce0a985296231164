"""What a rank does in a ring, block by block: sums, copies of finished chunks, and chains from one rank to all others.

Each block is sent on as soon as it is there, so that all links carry something at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.train.ring.blocks import blocks, chunk, copied_chunks, summed_chunks
from stoker.train.ring.links import RingLink
from stoker.train.ring.tensors import FlatBuffer

Moved = Callable[[], object]
"""Called after each block that has come: the exchange moves."""


def begin(link: RingLink, flat: FlatBuffer, most: int) -> None:
    """Queues what a sum sends before anything has come: this rank's own summand of its chunk."""
    _send_chunk(link, flat, most, link.place)


def reduce_scatter(
    link: RingLink,
    flat: FlatBuffer,
    most: int,
    scratch: bytearray,
    moved: Moved,
    *,
    sends_last: bool,
    has_begun: bool = False,
) -> None:
    """Sums a tensor so that chunk ``place + 1`` of it is complete on this rank; the other chunks hold parts of sums.

    Args:
        link: the ring.
        flat: this rank's summand.
        most: elements of a block.
        scratch: for a block that arrives.
        moved: called after each block.
        sends_last: whether complete blocks are sent on at once, which begins :func:`all_gather`.
        has_begun: whether :func:`begin` was called.
    """
    add, head = flat.adding(scratch), memoryview(scratch)
    if not has_begun:
        begin(link, flat, most)
    steps = summed_chunks(link.place, link.count)
    for step, number in enumerate(steps):
        sends = sends_last or step < len(steps) - 1
        for start, end in blocks(*chunk(flat.num_elements, link.count, number), most):
            link.receive(head[: (end - start) * flat.element_bytes])
            add(start, end)
            if sends:
                link.send(flat.part(start, end))
            moved()


def all_gather(link: RingLink, flat: FlatBuffer, most: int, moved: Moved, *, sends_first: bool) -> None:
    """Copies each rank's complete chunk, ``place + 1``, to all others. Arguments as :func:`reduce_scatter`.

    Args:
        link: the ring.
        flat: of which a chunk is complete.
        most: elements of a block.
        moved: called after each block.
        sends_first: whether this rank's chunk is still to be sent.
    """
    if sends_first:
        _send_chunk(link, flat, most, link.place + 1)
    steps = copied_chunks(link.place, link.count)
    for step, number in enumerate(steps):
        for start, end in blocks(*chunk(flat.num_elements, link.count, number), most):
            part = flat.part(start, end)
            link.receive(part)
            if step < len(steps) - 1:
                link.send(part)
            moved()


def all_reduce(
    link: RingLink, flat: FlatBuffer, most: int, scratch: bytearray, moved: Moved, *, has_begun: bool = False
) -> None:  # fmt: skip
    """Sums a tensor on all ranks, bit for bit alike. Arguments as :func:`reduce_scatter`."""
    reduce_scatter(link, flat, most, scratch, moved, sends_last=True, has_begun=has_begun)
    all_gather(link, flat, most, moved, sends_first=False)


def chain(link: RingLink, parts: Sequence[memoryview], most: int, source: int, moved: Moved) -> None:
    """Copies one rank's memory to all others, along the ring from that rank on.

    Args:
        link: the ring.
        parts: memory of the same sizes on all ranks.
        most: bytes of a block.
        source: place of the rank that has it.
        moved: called after each block.
    """
    hops = (link.place - source) % link.count
    for part in parts:
        for start, end in blocks(0, len(part), most):
            if hops:
                link.receive(part[start:end])
                moved()
            if hops < link.count - 1:
                link.send(part[start:end])


def _send_chunk(link: RingLink, flat: FlatBuffer, most: int, number: int) -> None:
    for start, end in blocks(*chunk(flat.num_elements, link.count, number), most):
        link.send(flat.part(start, end))
