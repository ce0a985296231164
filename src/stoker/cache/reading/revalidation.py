"""Revalidates many objects at once: one listing replaces a request for each, if listings contain versions.

A training run reads every object of a folder in each epoch, and each is stale by then. Some questions into the same
folder are answered one by one; then it is listed, and the listing answers the rest as long as it counts as fresh.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from stoker.cache.policies import Rule
from stoker.cache.sources.source import is_same
from stoker.cache.versions import Version
from stoker.core.processes.forking import ForkedLock

ASKED_SINGLY = 8
"""Questions into a folder before it is listed; a program that reads one object often does not list its folder."""
ASKED_UNLISTED = 1000
"""Likewise after a folder could not be listed."""
MOST_OBJECTS = 20_000
"""Most entries to list of one folder; objects beyond are checked one by one."""
_MOST_FOLDERS = 8


@runtime_checkable
class Lister(Protocol):
    """A source whose listings contain versions."""

    def versions(self, folder: str, most: int) -> Mapping[str, Version]:
        """Versions of the objects directly in a folder, by path.

        Args:
            folder: path of it.
            most: objects to return; any of them where there are more.
        """
        ...


@dataclass(slots=True)
class _Folder:
    asked: int = 0
    listed_at: float = -1.0
    versions: Mapping[str, Version] = field(default_factory=dict[str, Version])
    lock: ForkedLock = field(default_factory=ForkedLock)


class Listings:
    """Recent listings of a store. Bounded: a few folders of so many objects."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts empty.

        Args:
            clock: seconds since the epoch.
        """
        self._clock = clock
        self._folders: OrderedDict[str, _Folder] = OrderedDict()
        self._lock = ForkedLock()

    def confirmed_at(self, source: object, path: str, version: Version, rule: Rule, since: float) -> float | None:
        """When a listing said that an object still is of a version; None if none did, or none that counts.

        Args:
            source: of the store.
            path: of the object.
            version: that it had.
            rule: for the path.
            since: older answers do not count (seconds since the epoch).
        """
        if not isinstance(source, Lister):
            return None
        name = path.rpartition("/")[0]
        folder = self._folder(name)
        with folder.lock:
            if not self._is_fresh(folder, rule, since):
                folder.asked += 1
                if folder.asked <= ASKED_SINGLY:
                    return None
                listed_at = self._clock()
                try:
                    folder.versions = source.versions(name, MOST_OBJECTS)
                except Exception:  # permission to read objects often comes without permission to list them
                    folder.asked = -ASKED_UNLISTED
                    return None
                folder.asked, folder.listed_at = 0, listed_at
            found = folder.versions.get(path)
            if found is None or not is_same(found, version) or not self._is_fresh(folder, rule, since):
                return None
            return folder.listed_at

    def _is_fresh(self, folder: _Folder, rule: Rule, since: float) -> bool:
        return folder.listed_at > since and rule.is_fresh(folder.listed_at, self._clock())

    def _folder(self, name: str) -> _Folder:
        with self._lock:
            folder = self._folders.setdefault(name, _Folder())
            self._folders.move_to_end(name)
            if len(self._folders) > _MOST_FOLDERS:
                self._folders.popitem(last=False)
            return folder
