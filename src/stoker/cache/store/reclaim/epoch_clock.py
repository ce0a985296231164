"""Time counted in reads, and epochs estimated from repeated reads, for eviction. Pure, over plain numbers.

The state is a sequence of integers: a list in a simulation, a mapped file that all processes share in the store.
Concurrent updates may be lost; everything here is an estimate.

*Epochs.* Keys are sampled, cached or not. The number of reads between two reads of one page, at the upper end of those
seen, estimates the epoch: with every page read once per epoch in a new order, it is 1 to 2 epochs. Much shorter repeats
(parts of a page read one by one, several readers in step) do not count.

*Silence.* A group of files has been left if its pages are no longer read at all: no hit for three times its longest
time without one in an epoch.

Source: sampling by hash after Waldspurger et al. 2015 (SHARDS, with a bounded number of samples).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence
from typing import cast

GROUPS = 256
SAMPLES = 4096
_READS, _EPOCH, _REPEATS, _BEGUN, _FIRST, _SHIFT = range(1, 7)
COUNTERS_AT = 16
_GROUPS_AT = 64
_GROUP_CELLS = 8
_GROUP, _LAST, _LONGEST, _LONGEST_BEFORE, _HITS, _MEASURED = range(6)
_SAMPLES_AT = _GROUPS_AT + GROUPS * _GROUP_CELLS
NUM_CELLS = _SAMPLES_AT + 2 * SAMPLES
"""Cells that a clock needs, all 0 at first; cell 0 is the owner's."""

_FEWEST_REPEATS = 8
_SHORTEST_REPEAT_READS = 64
_SHORTEST_REPEAT_FRAC = 0.25
"""Shortest repeat, as a share of the estimated epoch, that counts as one of the next epoch."""
_RISE, _FALL = 0.2, 0.01
"""How far the epoch follows a longer and a shorter repeat: it stays at the upper end of those seen."""
_FEWEST_HITS = 32
"""Fewest hits of a group in an epoch for its silences to mean something."""
_FEWEST_EPOCHS = 2
_MOST_FIRST = SAMPLES // 2
"""Most samples in an epoch; with more of them, every second one is left out from then on."""
_FEWEST_FIRST = SAMPLES // 16
IDLE_EPOCHS = 2
SILENCE_FACTOR = 3
_SILENCE_READS = 64
"""Added to that, since reads are noted in batches."""


class ReadClock:
    """Estimates from the reads so far.

    Args:
        cells: at least :data:`NUM_CELLS` numbers.
    """

    def __init__(self, cells: MutableSequence[int] | memoryview) -> None:
        self.cells = cast("MutableSequence[int]", cells)

    @property
    def reads(self) -> int:
        """Reads of pages so far, cached or not."""
        return self.cells[_READS]

    @property
    def two_epochs_ago(self) -> int:
        """Files unread since then are not read every epoch; 0 while few pages have been read twice."""
        if self.cells[_REPEATS] < _FEWEST_REPEATS:
            return 0
        return max(0, self.cells[_READS] - IDLE_EPOCHS * self.cells[_EPOCH])

    def advance(self, num_reads: int) -> None:
        """Counts reads of pages."""
        self.cells[_READS] += num_reads

    def note_hits(self, hits: Mapping[int, int]) -> None:
        """Counts reads from the cache, by group."""
        now = self.cells[_READS]
        for group, number in hits.items():
            at = self._group(group)
            if at < 0:
                continue
            gap = now - self.cells[at + _LAST]
            # The length of a real silence says nothing about the next one.
            if self.cells[at + _LAST] and not self._is_silent(at) and gap > self.cells[at + _LONGEST]:
                self.cells[at + _LONGEST] = gap
            self.cells[at + _LAST] = now
            self.cells[at + _HITS] += number

    @property
    def sample_mask(self) -> int:
        """Keys whose tag has none of these bits are sampled: pass them to :meth:`ask`."""
        return (1 << min(63, self.cells[_SHIFT])) - 1

    def ask(self, tags: Iterable[int]) -> None:
        """Counts reads of sampled keys, cached or not.

        Args:
            tags: 64 bits of each.
        """
        cells = self.cells
        now, epoch = cells[_READS], cells[_EPOCH]
        soonest = max(_SHORTEST_REPEAT_READS, _SHORTEST_REPEAT_FRAC * epoch)
        noted = repeats = 0
        for tag in tags:
            at = _SAMPLES_AT + 2 * ((tag >> 32) % SAMPLES)
            if cells[at] == tag:
                gap = now - cells[at + 1]
                if gap < soonest:
                    continue
                repeats += 1
                epoch = epoch + int((gap - epoch) * (_RISE if gap > epoch else _FALL)) if epoch else gap
                soonest = max(_SHORTEST_REPEAT_READS, _SHORTEST_REPEAT_FRAC * epoch)
            cells[at], cells[at + 1] = tag, now
            noted += 1
        cells[_REPEATS] += repeats
        cells[_EPOCH] = epoch
        cells[_FIRST] += noted
        if cells[_FIRST] > _MOST_FIRST:
            cells[_SHIFT] += 1
            cells[_FIRST] >>= 1
        if epoch and now - cells[_BEGUN] >= epoch:
            self._begin_epoch(now)

    def _begin_epoch(self, now: int) -> None:
        cells = self.cells
        if cells[_FIRST] < _FEWEST_FIRST and cells[_SHIFT]:
            cells[_SHIFT] -= 1
        cells[_BEGUN], cells[_FIRST] = now, 0
        for number, group in enumerate(cells[_GROUPS_AT:_SAMPLES_AT:_GROUP_CELLS]):
            if group:
                at = _GROUPS_AT + number * _GROUP_CELLS
                cells[at + _LONGEST_BEFORE], cells[at + _LONGEST] = cells[at + _LONGEST], 0
                # In the first such epoch hits may have begun late: it may lack the longest silence of an epoch.
                cells[at + _MEASURED] = cells[at + _MEASURED] + 1 if cells[at + _HITS] >= _FEWEST_HITS else 0
                cells[at + _HITS] = 0

    def _group(self, group: int, *, add: bool = True) -> int:
        """Where the cells of a group begin; -1 if it has none, or other groups took all places."""
        for step in range(8):
            at = _GROUPS_AT + (group + step) % GROUPS * _GROUP_CELLS
            if self.cells[at + _GROUP] == group:
                return at
            if not self.cells[at + _GROUP]:
                if add:
                    self.cells[at + _GROUP] = group
                return at if add else -1
        return -1

    def left_since(self, group: int) -> int | None:
        """When the last page of a group was read, if the group has been left since; None if it has not."""
        at = self._group(group, add=False)
        return self.cells[at + _LAST] if at >= 0 and self._is_silent(at) else None

    def _is_silent(self, at: int) -> bool:
        cells = self.cells
        if cells[at + _MEASURED] < _FEWEST_EPOCHS:
            return False
        longest = max(cells[at + _LONGEST], cells[at + _LONGEST_BEFORE])
        return cells[_READS] - cells[at + _LAST] > SILENCE_FACTOR * longest + _SILENCE_READS
