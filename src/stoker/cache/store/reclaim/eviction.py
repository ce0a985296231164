"""Which files to evict when room is needed. Pure: from the files and the clock of reads to a choice.

``epoch`` (the default) is for training: every page is read once per epoch, in another order each time. An evicted page
would be read again sooner than the page admitted for it, so a full cache admits nothing while its pages are in use. A
file is evicted when none of its pages was read for two epochs, when its group is no longer read, when much of it is
dead, or after ``max_idle_s`` unread. The other policies admit every page, for serving. Under every policy, copies of
other workers' pages are evicted first.

Source: never evicting within an epoch: Mohan et al. 2021 (CoorDL, "MinIO"); SIEVE: Zhang et al. 2024; S3-FIFO: Yang et
al. 2023. All choose whole files here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stoker.cache.policies import Policy
from stoker.cache.store.reclaim.epoch_clock import ReadClock

HOLLOW_FRAC = 0.4
"""Dead fraction of a file from which the rest is evicted with it: rereading that costs less than the space is worth."""
_SMALL_FRAC = 0.1
"""Part of the cache in which S3-FIFO tries new files."""


class FileState(NamedTuple):
    """A segment or large object that may be evicted.

    Attributes:
        row: of the table.
        number: of the file; later ones are higher.
        group: of its pages.
        allocated: bytes that become free.
        live_pages: pages that have not been replaced.
        last_read: when it was read or written last (reads of the clock).
        idle_s: since then (seconds).
        reads: of its pages so far.
        passed: when the policy spared it last (reads of the clock; 0: never).
        is_copy: whether another worker keeps its pages.
        dead_frac: share of what was written that has been replaced or dropped since.
    """

    row: int
    number: int
    group: int
    allocated: int
    live_pages: int
    last_read: int
    idle_s: float
    reads: int
    passed: int
    is_copy: bool = False
    dead_frac: float = 0.0


class Victims(NamedTuple):
    """Files to evict, in order, and those spared on the way (set their ``passed`` to now)."""

    victims: list[FileState]
    spared: list[FileState]


def choose(
    policy: Policy, files: Sequence[FileState], clock: ReadClock, need_bytes: int, max_idle_s: float, *,
    force: bool, for_copy: bool = False,
) -> Victims:  # fmt: skip
    """Which files to evict to free so many bytes; fewer bytes if the policy keeps the rest.

    Args:
        policy: which order.
        files: that may be evicted.
        clock: of reads.
        need_bytes: bytes to free.
        max_idle_s: time unread after which every policy evicts a file.
        force: evict files even if they are in use, the least recently read first (for pinned pages).
        for_copy: the room is for copies themselves: existing ones are only evicted as the policy says.
    """
    gone = [file for file in files if not file.live_pages or file.idle_s > max_idle_s]
    rest = [file for file in files if file.live_pages and file.idle_s <= max_idle_s]
    if not for_copy:
        gone += sorted((file for file in rest if file.is_copy), key=_by_last_read)
        rest = [file for file in rest if not file.is_copy]
    still_needed = need_bytes - sum(file.allocated for file in gone)
    if still_needed <= 0:
        return Victims(_until(gone, need_bytes), [])
    choice = _POLICIES[policy](rest, clock, still_needed)
    if force and sum(file.allocated for file in choice.victims) < still_needed:
        choice = _lru(rest, clock, still_needed)
    return Victims(gone + choice.victims, choice.spared)


def _until(files: Sequence[FileState], need_bytes: int) -> list[FileState]:
    """The first files that together free enough."""
    taken: list[FileState] = []
    for file in files:
        if need_bytes <= 0:
            break
        taken.append(file)
        need_bytes -= file.allocated
    return taken


def _by_last_read(file: FileState) -> tuple[int, int]:
    return file.last_read, file.number


def _epoch(files: Sequence[FileState], clock: ReadClock, need_bytes: int) -> Victims:
    left = {group: clock.left_since(group) for group in {file.group for file in files}}
    unread = clock.two_epochs_ago
    stale: list[FileState] = []
    hollow: list[FileState] = []
    for file in files:
        left_at = left[file.group]
        if file.last_read < unread or (left_at is not None and file.last_read <= left_at):
            stale.append(file)
        elif file.dead_frac >= HOLLOW_FRAC:
            # Objects that change at their source leave dead pages behind, which would fill the cache in the end.
            hollow.append(file)
    hollow.sort(key=lambda file: -file.dead_frac)
    return Victims(_until(sorted(stale, key=_by_last_read) + hollow, need_bytes), [])


def _lru(files: Sequence[FileState], clock: ReadClock, need_bytes: int) -> Victims:
    return Victims(_until(sorted(files, key=_by_last_read), need_bytes), [])


def _sieve(files: Sequence[FileState], clock: ReadClock, need_bytes: int) -> Victims:
    """The hand moves from old to new, spares files read since it last passed, and takes the others."""
    spared: dict[int, FileState] = {}
    victims: list[FileState] = []
    for file in sorted(files, key=lambda file: (file.passed, file.number)):
        if need_bytes <= 0:
            return Victims(victims, list(spared.values()))
        if file.reads and file.last_read > file.passed:
            spared[file.row] = file
        else:
            victims.append(file)
            need_bytes -= file.allocated
    # All remaining files were read: after one round the hand takes the oldest.
    again = _until(sorted(spared.values(), key=lambda file: (file.passed, file.number)), need_bytes)
    return Victims(victims + again, [file for file in spared.values() if file not in again])


def _s3fifo(files: Sequence[FileState], clock: ReadClock, need_bytes: int) -> Victims:
    """New files enter a small queue; those that are read move to the main one, which is circular."""
    small = sorted((file for file in files if not file.passed), key=lambda file: file.number)
    main = sorted((file for file in files if file.passed), key=lambda file: (file.passed, file.number))
    bound = _SMALL_FRAC * sum(file.allocated for file in files)
    small_bytes = sum(file.allocated for file in small)
    victims: list[FileState] = []
    spared: list[FileState] = []
    while need_bytes > 0 and (small or main):
        if small and (small_bytes > bound or not main):
            file = small.pop(0)
            small_bytes -= file.allocated
            kept = file.reads > file.live_pages
        else:
            file = main.pop(0)
            kept = file.last_read > file.passed
        if kept:
            spared.append(file)
        else:
            victims.append(file)
            need_bytes -= file.allocated
    if need_bytes > 0:
        again = _until(sorted(spared, key=_by_last_read), need_bytes)
        victims, spared = victims + again, [file for file in spared if file not in again]
    return Victims(victims, spared)


_POLICIES: dict[Policy, Callable[[Sequence[FileState], ReadClock, int], Victims]] = {
    "epoch": _epoch,
    "lru": _lru,
    "sieve": _sieve,
    "s3fifo": _s3fifo,
}
