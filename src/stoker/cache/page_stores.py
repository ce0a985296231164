"""The page stores of this process: one for each directory, however many filesystems use it."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import msgspec

from stoker.cache.policies import Rule, Verify
from stoker.cache.settings import CacheSettings
from stoker.cache.store.layout import StoreSettings, default_directory, note_limit_bytes, note_policy
from stoker.cache.store.page_store import PageStore
from stoker.core.processes.forking import ForkedLock

_stores: dict[tuple[Path, tuple[Rule, ...], Verify], PageStore] = {}
_lock = ForkedLock()


def page_store(settings: CacheSettings) -> PageStore:
    """The page store of the cache, opened or created."""
    place = Path(settled(settings).directory).resolve()
    key = place, settings.all_rules, settings.verify
    with _lock:
        if key not in _stores:
            _stores[key] = PageStore(place, StoreSettings(**msgspec.structs.asdict(settings)))
        return _stores[key]


def settled(settings: CacheSettings) -> CacheSettings:
    """The settings with whole paths, and with the user's own directory where none is named.

    Raises:
        CacheDirectoryError: the user's own would be on a network mount.
    """
    return settings.settled(default_directory)


def note_asked(settings: CacheSettings) -> None:
    """Stores the requested size and eviction policy, if any, for processes that open the cache later.

    Args:
        settings: settled ones.

    Raises:
        CacheDirectoryError: the directory is unusable.
    """
    if settings.limit_bytes is not None:
        note_limit_bytes(Path(settings.directory), settings.limit_bytes)
    if settings.eviction is not None:
        note_policy(Path(settings.directory), settings.eviction)


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
