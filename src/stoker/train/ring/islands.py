"""Sums over islands of ranks: within each, across them, and back within, block by block one behind the other.

Links between islands are slower than those inside, and ranks of one island share them. A ring through all ranks carries
2(N - 1)/N of a tensor over each such link, in each direction. Here each rank of an island first has a share of the
island's sum, ranks of the same place in all islands sum their shares in a separate ring, and the shares are then
copied within: 2(n - 1)/n of the tensor go over the link of an island, for n islands. Blocks of the tensor follow each
other through the three stages, each with separate connections, so that links inside and between work at once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.train.ring import passes
from stoker.train.ring.blocks import blocks, chunk
from stoker.train.ring.links import PassOpening, RingLink
from stoker.train.ring.tensors import FlatBuffer

WITHIN, ACROSS, BACK = "within", "across", "back"
"""Names of the rings, one for each stage."""
_STAGES = 8
"""Blocks of a tensor, if it is not small: the first and the last one pass with the other stages idle."""
_LEAST_BYTES = 32 << 10
"""Least bytes of a message: below it Python's calls take longer than the bytes."""

Failed = Callable[[Exception], object]
"""Called with the error of a stage, in its thread: all connections end, and so the other stages."""


def checked_islands(islands: Sequence[Sequence[int]], count: int) -> tuple[tuple[int, ...], ...]:
    """Islands of which each rank is in one; two at least, all of the same size, of two ranks at least.

    Raises:
        ValueError: they are not.
    """
    found = tuple(tuple(island) for island in islands)
    sizes = {len(island) for island in found}
    if sorted(place for island in found for place in island) != list(range(count)):
        raise ValueError(f"`islands` must hold each place of {count} once, got {[list(each) for each in found]}")
    if len(found) < 2 or len(sizes) != 1 or min(sizes) < 2:
        raise ValueError(
            f"`islands` must be at least 2, all of one size from 2 ranks on, got sizes {[len(each) for each in found]}"
        )
    return found


def can_sum(islands: Sequence[Sequence[int]]) -> bool:
    """Whether sums go by these islands: several, alike in size, of several ranks."""
    return len(islands) > 1 and len({len(island) for island in islands}) == 1 and len(islands[0]) > 1


def island_rings(islands: Sequence[Sequence[int]], rank: int) -> dict[str, list[int]]:
    """The rings that a rank is in for its three stages, ranks in their order."""
    own = next(island for island in islands if rank in island)
    place = own.index(rank)
    return {WITHIN: list(own), ACROSS: [island[place] for island in islands], BACK: list(own)}


def island_block_bytes(size: int, islands: int, local: int, most: int) -> int:
    """Bytes of a block: several in a tensor, and yet no message so small that its call counts.

    Args:
        size: of the tensor (bytes).
        islands: their number.
        local: ranks of each.
        most: bytes of a message at most.
    """
    least = _LEAST_BYTES * local * islands
    return max(least, min(most * local, size // _STAGES))


@dataclass(frozen=True, slots=True)
class IslandSum:
    """One sum of a tensor, on one rank.

    Attributes:
        links: the rings of :func:`island_rings`, connected.
        flat: the tensor.
        block: elements of a block.
        most: elements of a message.
        moved: called after each message that has come.
        failed: called with the first error of each stage.
    """

    links: Mapping[str, RingLink]
    flat: FlatBuffer
    block: int
    most: int
    moved: passes.Moved
    failed: Failed

    def run(self, opening: PassOpening) -> None:
        """Sums it, and returns when all has been sent; raises the first error of the stages."""
        for name in (WITHIN, ACROSS, BACK):
            self.links[name].agree(opening)
        errors: list[Exception] = []
        summed, crossed = _BlockQueue(), _BlockQueue()
        threads = [
            threading.Thread(target=self._stage, args=(stage, came, goes, errors), name=f"stoker-exchange-{name}")
            for name, stage, came, goes in (
                (ACROSS, self._across, summed, crossed),
                (BACK, self._back, crossed, None),
            )
        ]
        for thread in threads:
            thread.daemon = True
            thread.start()
        every = [
            FlatBuffer(self.flat.tensor[start:end]) for start, end in blocks(0, self.flat.num_elements, self.block)
        ]
        self._stage(self._within, every, summed, errors)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        for link in self.links.values():
            link.drain()

    def _stage(
        self, stage: Callable[[FlatBuffer, bytearray], object], came: _BlockQueue | Sequence[FlatBuffer],
        goes: _BlockQueue | None, errors: list[Exception],
    ) -> None:  # fmt: skip
        scratch = bytearray(self.most * self.flat.element_bytes)
        try:
            for part in came:
                stage(part, scratch)
                if goes is not None:
                    goes.put(part)
        except Exception as error:  # raised by the thread of the exchanges; the other stages must not wait for this one
            errors.append(error)
            self.failed(error)
        finally:
            if goes is not None:
                goes.end()

    def _within(self, part: FlatBuffer, scratch: bytearray) -> None:
        passes.reduce_scatter(self.links[WITHIN], part, self.most, scratch, self.moved, sends_last=False)

    def _across(self, part: FlatBuffer, scratch: bytearray) -> None:
        within = self.links[WITHIN]
        start, end = chunk(part.num_elements, within.count, within.place + 1)
        passes.all_reduce(self.links[ACROSS], FlatBuffer(part.tensor[start:end]), self.most, scratch, self.moved)

    def _back(self, part: FlatBuffer, _: bytearray) -> None:
        passes.all_gather(self.links[BACK], part, self.most, self.moved, sends_first=True)


class _BlockQueue:
    """Blocks that one stage is done with, for the next one; ends when the stage does."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[FlatBuffer | None] = queue.SimpleQueue()

    def put(self, part: FlatBuffer) -> None:
        self._queue.put(part)

    def end(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[FlatBuffer]:
        while (part := self._queue.get()) is not None:
            yield part
