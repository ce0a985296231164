"""Opens and assembles the parts of a store; recovery, forks and closing, which concern all of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path

from msgspec.structs import replace

from stoker.cache.store.contents import Contents
from stoker.cache.store.files.maps import Mapped, Maps, open_locked
from stoker.cache.store.files.segments import parts_read
from stoker.cache.store.files.table import FileKind, FileTable, RowState
from stoker.cache.store.index.page_index import Index
from stoker.cache.store.layout import (
    Layout,
    StoreSettings,
    default_limit_bytes,
    noted_limit_bytes,
    noted_policy,
    segment_bytes_for,
)
from stoker.cache.store.locks import LockFile
from stoker.cache.store.pins import Pins
from stoker.cache.store.reclaim.access_log import Pulse
from stoker.cache.store.reclaim.space import SpaceBounds
from stoker.cache.store.writing.large_files import LargeFiles, spans_there
from stoker.cache.store.writing.segment_writer import Writers
from stoker.core.errors import CacheBusyError

_REINDEX_S = 4.0
"""Longest time to rebuild a lost index when a store is opened; pages that are left then are dropped."""


class Parts:
    """A store's files, as this process has them open.

    Raises:
        CacheDirectoryError: the directory cannot be used.
        CacheBusyError: the store is new, and a stopped process holds the lock under which it is created.
    """

    def __init__(self, directory: Path, settings: StoreSettings) -> None:
        settings = replace(settings, eviction=settings.eviction or noted_policy(directory) or "epoch")
        self.settings = settings
        self.layout = layout = Layout(directory)
        layout.prepare()
        self.is_read_only = reads_only = layout.is_read_only
        self.locks = locks = LockFile(layout.locks, reads_only=reads_only)
        # An existing store can be read even while another process holds the lock.
        with self.publishing("opening the store") if not layout.is_made else locks.publishing(settings.lock_wait_s):
            try:
                self.table = table = FileTable(layout.table, reads_only=reads_only)
                self.index = index = Index(layout.index, table.alive, reads_only=reads_only)
                self.pulse = pulse = Pulse(layout.pulse, table.group, table.num_rows, reads_only=reads_only)
            except OSError as error:
                raise layout.refusal(error) from error
        self.limit_bytes = (
            settings.limit_bytes
            or noted_limit_bytes(directory)
            or default_limit_bytes(directory, table.allocated_bytes())
        )
        self.maps = Maps(self._open_file)
        self.room = room = SpaceBounds(
            layout, locks, table, pulse, settings, limit_bytes=self.limit_bytes,
            other_bytes=lambda: index.num_bytes + table.num_bytes + pulse.num_bytes, let_go=self._let_go,
        )  # fmt: skip
        ttl_s = tuple(float("inf") if rule.ttl_s is None else rule.ttl_s for rule in settings.all_rules)
        self.writers = Writers(
            layout, locks, table, index, pulse, room,
            segment_bytes=segment_bytes_for(self.limit_bytes), lock_wait_s=settings.lock_wait_s, seconds_to_live=ttl_s,
        )  # fmt: skip
        self.large = LargeFiles(
            layout, locks, table, index, pulse, room, lock_wait_s=settings.lock_wait_s, seconds_to_live=ttl_s
        )
        self.pins = Pins(layout.pins, lambda: table.pins, table.note_pins)
        self.contents = Contents(table, index, self.maps.get)
        locks.call_after_fork(self._in_child)
        self._recover()

    def _recover(self) -> None:
        """Recover from dead processes, and from an index that a power loss damaged."""
        if self.index.is_empty and self.contents.rows():
            left: list[int] = []
            with self.locks.publishing(self.settings.lock_wait_s) as held, contextlib.suppress(OSError):
                left = self.contents.reindex(_REINDEX_S) if held else []
            self.room.doom([(row, self.table.get(row).id) for row in left])
        self.room.repair()
        self.room.reap()
        self.room.remove_orphans()

    def _in_child(self) -> None:
        # The parent's maps would keep what is evicted on the disk for as long as this process lives.
        self.maps.files.clear()
        self.writers.reset()
        self.large.reset()
        self.pulse.reset()

    def close(self) -> None:
        """Unmap all files."""
        self.writers.close()
        self.large.close()
        self.maps.files.clear()
        self.pulse.close()
        self.index.close()
        self.table.close()
        self.locks.close()

    def sweep(self) -> None:
        """Unmap files that were evicted, so that their bytes become free."""
        alive = set(self.table.alive().tolist())
        self.maps.keep_only(alive)
        self.large.keep_only(alive)

    def _let_go(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self.maps.let_go(numbers)
        self.large.let_go(numbers)

    def _open_file(self, number: int) -> Mapped | None:
        """Map a file by its number; None if it is gone."""
        row = self.table.find(number)
        if row < 0:
            return None
        content = self.table.get(row)
        if content.id != number or content.state not in (RowState.OPEN, RowState.SEALED):
            return None
        if content.kind == FileKind.SEGMENT:
            path = self.layout.segment(number)
            fd = open_locked(path, os.O_RDONLY)
            return None if fd is None else Mapped(row, content, path, fd, parts_read(fd, content.tail))
        path = self.layout.large_rows(number)
        fd = open_locked(path, os.O_RDONLY)
        if fd is None:
            return None
        pages = Mapped(row, content, path, fd, [(0, os.fstat(fd).st_size)])
        path = self.layout.large(number)
        fd = open_locked(path, os.O_RDONLY)
        return None if fd is None else Mapped(row, content, path, fd, spans_there(pages.data), pages)

    @contextlib.contextmanager
    def publishing(self, doing: str) -> Generator[None]:
        """Holds the lock of index and table.

        Args:
            doing: what the lock is for, as the error shows it.

        Raises:
            CacheBusyError: another process holds the lock for too long.
        """
        with self.locks.publishing(self.settings.lock_wait_s) as held:
            if not held:
                raise CacheBusyError(
                    f"{doing} needs the lock of `{self.layout.root}`, which another process has held for "
                    f"{self.settings.lock_wait_s:g} s; look for a stopped process with `lslocks`.",
                    path=str(self.layout.locks),
                )
            yield
