"""Making room: how much the store may take, and evicting what the policy chose.

The process that holds the evict lock makes room; others are rejected meanwhile. A file is evicted in steps: its row is
doomed and readers unmap it, the file is removed once no process has it mapped, and the row is free. Until then its
bytes count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from stoker.cache.policies import PageLife
from stoker.cache.store.files.maps import is_in_use, remove_unused
from stoker.cache.store.files.segments import FIRST_RECORD_AT
from stoker.cache.store.files.table import FileKind, FileTable, Row, RowState
from stoker.cache.store.layout import Layout, StoreSettings
from stoker.cache.store.locks import LockFile
from stoker.cache.store.reclaim.access_log import Count, Pulse
from stoker.cache.store.reclaim.admission import Refusal
from stoker.cache.store.reclaim.eviction import FileState, choose

_MOST_DOOMED_FRAC = 0.125
"""Fraction of the limit that evicted but still mapped files may take. Beyond it, only unmapped files are evicted: a
stopped process costs room for new pages, not the cached pages."""
_NEW_S = 5.0
"""How long a large object may have no page: another process is about to add one."""
_LEAST_MARGIN_BYTES, _MOST_MARGIN_BYTES = 192 << 10, 1 << 20
"""Part of the limit reserved for the index: a growing table exists twice for a moment (66 KiB)."""
_MOST_HEADER_BYTES = 512
"""Header of a record, as a rule; live bytes may be overestimated a little."""
_LETTING_GO_S = 0.002
_REFUSED_FACTOR = 20
"""How long to reject after there was no room, as a multiple of the CPU time that the decision took. Not of wall time: a
thread that waited for a core, a lock or the disk would be rejected for epochs."""


class SpaceBounds:
    """Keeps a store within its bounds.

    Args:
        layout: of the directory.
        locks: of this process.
        table: of files.
        pulse: what was read when.
        settings: of the store.
        limit_bytes: most bytes on disk.
        other_bytes: bytes of the index and the like, now.
        let_go: drops this process's maps of these files.
    """

    def __init__(
        self, layout: Layout, locks: LockFile, table: FileTable, pulse: Pulse, settings: StoreSettings, *,
        limit_bytes: int, other_bytes: Callable[[], int], let_go: Callable[[Iterable[int]], None],
    ) -> None:  # fmt: skip
        self._layout, self._locks, self._table, self._pulse, self._settings = layout, locks, table, pulse, settings
        self._limit_bytes = limit_bytes
        self._margin_bytes = min(max(limit_bytes // 256, _LEAST_MARGIN_BYTES), _MOST_MARGIN_BYTES)
        self._other_bytes, self._let_go = other_bytes, let_go
        self._refused = {is_copy: Refusal(-1.0, -1) for is_copy in (False, True)}

    def used_bytes(self) -> int:
        """Bytes that count for the limit."""
        return self._table.allocated_bytes() + self._other_bytes()

    @property
    def is_tight(self) -> bool:
        """Whether the index, which grows as segments are filled, has used half of its reserve."""
        return self.used_bytes() + self._margin_bytes // 2 > self._limit_bytes

    def fits(self, num_bytes: int, rule: int) -> bool:
        """Whether so many bytes may be added. Under the publish lock."""
        return self._lacking(num_bytes) <= 0 and self._rule_lacking(rule, num_bytes) <= 0

    def _lacking(self, num_bytes: int) -> int:
        """Bytes to free, for the limit and for the free space on the disk."""
        over = self.used_bytes() + num_bytes + self._margin_bytes - self._limit_bytes
        return max(over, num_bytes - self.disk_spare_bytes())

    def disk_spare_bytes(self) -> int:
        """Bytes that the disk has to spare; negative if less is free than must stay free."""
        disk = os.statvfs(self._layout.root)
        return disk.f_bavail * disk.f_frsize - int(disk.f_blocks * disk.f_frsize * self._settings.keep_free_frac)

    def _rule_lacking(self, rule: int, num_bytes: int) -> int:
        quota = self.quota_bytes(rule)
        if quota is None:
            return 0
        return self._table.allocated_bytes(rule) + num_bytes - quota

    def quota_bytes(self, rule: int) -> int | None:
        """Most bytes of a rule's pages."""
        rules = self._settings.all_rules
        return rules[rule].quota_bytes if rule < len(rules) else None

    def make(self, num_bytes: int, life: PageLife, rule: int) -> bool:
        """Evict what may be evicted for so many bytes; return whether anything was removed. Under no lock."""
        if life is not PageLife.PINNED and self.stands(self.refused(life)):
            return False
        begun, changes = time.thread_time(), self._table.changes
        with self._locks.evicting() as held:
            done = held and self._make(num_bytes, life, rule)
        if not done:
            # Readers unmap files that were just evicted in a moment.
            asking_s = time.thread_time() - begun if self._table.changes == changes else 0.0
            until = time.monotonic() + max(_LETTING_GO_S, _REFUSED_FACTOR * asking_s)
            self._refused[life is PageLife.COPY] = Refusal(until, self._table.changes)
        return done

    def refused(self, life: PageLife) -> Refusal:
        """The last refusal of room for pages of a life; copies get less room than others."""
        return self._refused[life is PageLife.COPY]

    def stands(self, refusal: Refusal) -> bool:
        """Whether a refusal is still valid."""
        return time.monotonic() < refusal.until and self._table.changes == refusal.changes

    def _make(self, num_bytes: int, life: PageLife, rule: int) -> bool:
        self._pulse.flush()
        went = self._reap()
        rows = self._table.rows()
        now = time.time()
        need = self._lacking(num_bytes)
        rule_need = self._rule_lacking(rule, num_bytes)
        if need <= 0 and rule_need <= 0:
            return went
        alive = (rows["state"] == RowState.OPEN) | (rows["state"] == RowState.SEALED)
        files = [file for row in np.flatnonzero(alive).tolist() if (file := self._candidate(row, now)) is not None]
        if rows["allocated"][rows["state"] == RowState.DOOMED].sum() > _MOST_DOOMED_FRAC * self._limit_bytes:
            self._let_go([file.number for file in files])
            files = [file for file in files if not self._is_used(file.row)]
        victims: dict[int, FileState] = {}
        for bytes_needed, among in (
            (rule_need, [file for file in files if rows["rule"][file.row] == rule]),
            (need, files),
        ):
            if bytes_needed > 0:
                choice = choose(
                    self._settings.eviction or "epoch", among, self._pulse.clock, bytes_needed,
                    self._settings.max_idle_s, force=life is PageLife.PINNED,
                    for_copy=life is PageLife.COPY,
                )  # fmt: skip
                victims.update((file.row, file) for file in choice.victims)
                for file in choice.spared:
                    self._pulse.spare(file.row)
        self.doom([(file.row, file.number) for file in victims.values()])
        return self._reap() or went

    def _candidate(self, row: int, now: float) -> FileState | None:
        """A file that the policy may choose."""
        content = self._table.get(row)
        if content.state not in (RowState.OPEN, RowState.SEALED):
            return None
        expired = content.expires <= now
        if content.life == PageLife.PINNED and content.live_pages and not expired:
            return None
        if content.state == RowState.OPEN and content.kind == FileKind.SEGMENT and not self._is_unclaimed(row):
            return None
        mark = self._pulse.mark(row)
        if content.kind == FileKind.LARGE and not content.live_pages and now - mark.last_time < _NEW_S:
            return None
        return FileState(
            row, content.id, content.group, content.allocated, 0 if expired else content.live_pages,
            mark.last_read, now - mark.last_time, mark.num_reads, mark.passed, content.life == PageLife.COPY,
            _dead_frac(content),
        )  # fmt: skip

    def _is_used(self, row: int) -> bool:
        """Whether a process has a row's file mapped."""
        content = self._table.get(row)
        return is_in_use(self._path(content))

    def doom(self, files: Iterable[tuple[int, int]]) -> int:
        """Evict files, by row and number, that no process appends to; return how many."""
        now = time.time()
        num_doomed = 0
        for row, number in files:
            with self._locks.publishing(self._settings.lock_wait_s) as held:
                content = self._table.get(row)
                if not held or content.id != number or content.state not in (RowState.OPEN, RowState.SEALED):
                    continue
                if not self._locks.claim(row):
                    continue
                self._table.doom(row, now)
                self._locks.release(row)
            num_doomed += 1
            self._pulse.count(Count.EVICTED_PAGES, content.live_pages)
            self._pulse.count(Count.EVICTED_BYTES, content.live_bytes)
        return num_doomed

    def repair(self) -> None:
        """Repair rows as no process writes them: damage by the disk would stay for ever."""
        if self._table.is_out_of_numbers:
            with self._locks.publishing(self._settings.lock_wait_s) as held:
                if held:
                    self._table.renumber()
        rows = self._table.rows()
        is_odd = (rows["state"] > RowState.DOOMED) | ((rows["state"] == RowState.FREE) & (rows["allocated"] > 0))
        for row in np.flatnonzero(is_odd).tolist():
            with self._locks.publishing(self._settings.lock_wait_s) as held:
                state = self._table.get(row).state
                if held and state == RowState.FREE:
                    self._table.free(row)
                elif held and state > RowState.DOOMED:
                    self._table.doom(row, time.time())

    def reap(self) -> None:
        """Remove evicted files, and unfinished files of dead processes."""
        with self._locks.evicting() as held:
            if held:
                self._reap()

    def remove_orphans(self) -> None:
        """Remove files without a row, which only a power loss leaves behind."""
        with self._locks.evicting() as held:
            # Files first: a row is written before its file is made.
            files = {path: int(path.stem, 16) for path in self._layout.page_files()} if held else {}
            known = set(self._table.rows()["id"].tolist())
            for path, number in files.items():
                if number not in known:
                    remove_unused(path)

    def _reap(self) -> bool:
        rows = self._table.rows()
        self._let_go(rows["id"][rows["state"] == RowState.DOOMED].tolist())
        went = False
        for row in np.flatnonzero((rows["state"] == RowState.DOOMED) | (rows["state"] == RowState.MAKING)).tolist():
            content = self._table.get(row)
            if content.state == RowState.MAKING and not self._is_unclaimed(row):
                continue
            if content.state not in (RowState.DOOMED, RowState.MAKING) or not self._remove(content):
                continue
            with self._locks.publishing(self._settings.lock_wait_s) as held:
                if held and self._table.get(row).id == content.id:
                    self._table.free(row)
                    went = True
        return went

    def _is_unclaimed(self, row: int) -> bool:
        """Whether no process is creating a row's file, or appending to it."""
        if not self._locks.claim(row):
            return False
        self._locks.release(row)
        return True

    def _path(self, content: Row) -> Path:
        number = content.id
        return self._layout.segment(number) if content.kind == FileKind.SEGMENT else self._layout.large(number)

    def _remove(self, content: Row) -> bool:
        gone = remove_unused(self._path(content))
        return gone and (content.kind == FileKind.SEGMENT or remove_unused(self._layout.large_rows(content.id)))


def _dead_frac(content: Row) -> float:
    """Dead fraction of a segment; a large object is replaced as a whole."""
    written = content.tail - FIRST_RECORD_AT
    if content.kind != FileKind.SEGMENT or written <= 0:
        return 0.0
    return max(0.0, 1.0 - (content.live_bytes + content.live_pages * _MOST_HEADER_BYTES) / written)
