"""The page stores of this process: one for each directory, however many filesystems use it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from pathlib import Path

from stoker.cache.policies import DEFAULT_RULES, Rule, Verify
from stoker.cache.store.layout import StoreSettings, default_directory
from stoker.cache.store.page_store import PageStore
from stoker.core.forking import ForkedLock

_stores: dict[tuple[Path, tuple[Rule, ...], Verify], PageStore] = {}
_lock = ForkedLock()


def page_store(
    directory: str | os.PathLike[str] | None = None,
    limit_bytes: int | None = None,
    rules: Sequence[Rule] = DEFAULT_RULES,
    verify: Verify = "always",
) -> PageStore:
    """The page store of a directory, opened or created.

    Args:
        directory: None for the user's own.
        limit_bytes: most bytes on disk; None for what was last asked for, else a part of the disk.
        rules: say how long pages stay.
        verify: when bytes are compared with their checksums: at every read, or when this process first reads them.
    """
    place = (Path(directory) if directory is not None else default_directory()).expanduser().resolve()
    key = place, tuple(rules), verify
    with _lock:
        if key not in _stores:
            settings = StoreSettings(limit_bytes=limit_bytes, rules=tuple(rules), verify=verify)
            _stores[key] = PageStore(place, settings)
        return _stores[key]


def close_page_stores(directory: str | os.PathLike[str]) -> None:
    """Closes what this process has open of a directory; filesystems that use it read no more."""
    place = Path(directory).expanduser().resolve()
    with _lock:
        stores = [_stores.pop(key) for key in list(_stores) if key[0] == place]
    for store in stores:
        store.close()


@atexit.register
def _note_reads() -> None:
    """The last few reads of a process count as well."""
    for store in _stores.values():
        store.note_reads()
