"""Several directories as one store of pages: a worker on a machine with several disks.

Chunks of objects are dealt to the directories by their sizes; a page is found wherever it is, so that a directory may
be added or taken away at any time. One that cannot be used costs the pages in it, which are misses, and nothing else.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import xxhash
from msgspec.structs import replace

from stoker.cache.cluster.membership.ring import chunk_position
from stoker.cache.names import ObjectName
from stoker.cache.page_stores import page_store
from stoker.cache.policies import PageLife
from stoker.cache.protocols import Pages, Reads
from stoker.cache.settings import CacheSettings
from stoker.cache.store.contents import HeldPage
from stoker.cache.store.index.page_index import Entry
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version
from stoker.core.errors import CacheError, ConfigError

REST_S = 30.0
"""How long to avoid a directory after a failure."""
_Result = TypeVar("_Result")


@dataclass(slots=True, eq=False)
class Directory:
    """One of them.

    Attributes:
        path: of it.
        store: in it; None if it cannot be opened.
        fault: what failed in it last; empty for nothing.
        resting: until when it is left alone (monotonic seconds).
    """

    path: Path
    store: PageStore | None
    fault: str = ""
    resting: float = 0.0

    def usable(self) -> PageStore | None:
        """The store, unless something has failed in it a moment ago."""
        return self.store if not self.resting or time.monotonic() >= self.resting else None

    def failed(self, error: Exception) -> None:
        """Notes a failure."""
        self.fault = _words(error)
        self.resting = time.monotonic() + REST_S

    def gone(self) -> OSError | None:
        """The fault, if the directory was removed or its disk is no longer mounted."""
        try:
            os.stat(self.path / "format")
        except OSError as error:
            return error
        return None

    def state(self) -> dict[str, Any]:
        """Its state, for display."""
        told: dict[str, Any] = {"directory": str(self.path), "state": self.fault or "ok"}
        if self.store is None:
            return told
        if gone := self.gone():
            return {**told, "state": _words(gone)}
        try:
            stats = self.store.stats()
            disk = os.statvfs(self.path)
        except (CacheError, OSError) as error:
            return {**told, "state": _words(error)}
        if disk.f_bavail < self.store.settings.keep_free_frac * disk.f_blocks and stats.used_bytes < stats.limit_bytes:
            told["state"] = self.fault or "the disk is full"
        return {**told, "used_bytes": stats.used_bytes, "limit_bytes": stats.limit_bytes, "pages": stats.live.pages}


class Placed(NamedTuple):
    """An entry, and the directory that it is of."""

    version: int
    length: int
    object_size: int
    checked_at: float
    directory: Directory
    entry: Entry


class Directories:
    """The page stores of several directories, used like one. For threads.

    Args:
        directories: at least one of which has a store.
    """

    def __init__(self, directories: Sequence[Directory]) -> None:
        self.directories = tuple(directories)
        self._seeds = {id(one): xxhash.xxh3_64_intdigest(str(one.path).encode(errors="surrogateescape"))
                       for one in directories}  # fmt: skip

    @property
    def pages(self) -> Pages:
        """These; of a single one its store, which has less to do."""
        store = self.directories[0].store
        return self if store is None or len(self.directories) > 1 else store

    @property
    def first(self) -> Path:
        """The first usable directory, which also holds the worker's other files."""
        return next(one.path for one in self.directories if one.store is not None)

    @property
    def roots(self) -> tuple[str, ...]:
        """Directories that other processes of this user may open as well."""
        return tuple(str(one.path.absolute()) for one in self.directories if one.store is not None)

    @property
    def limit_bytes(self) -> int:
        """Most bytes on disk, of all that can be used."""
        return sum(one.store.limit_bytes for one in self.directories if one.store is not None)

    def states(self) -> list[dict[str, Any]]:
        """The state of each, for display."""
        return [one.state() for one in self.directories]

    def lookup(self, key: bytes) -> Placed | None:
        """Where a page is, and which version it belongs to; None if it is not here."""
        for directory in self.directories:
            store = directory.usable()
            entry = None if store is None else self._try(directory, lambda store=store: store.lookup(key), None)
            if entry is not None:
                return Placed(entry.version, entry.length, entry.object_size, entry.checked_at, directory, entry)
        return None

    def read_into(self, key: bytes, entry: Placed, start: int, buffer: memoryview) -> bool:
        """Copy bytes of a page, compared with their checksums; False if it is gone or damaged."""
        store = entry.directory.usable()
        return store is not None and self._try(
            entry.directory, lambda: store.read_into(key, entry.entry, start, buffer), False
        )

    def view(self, key: bytes, entry: Placed) -> memoryview | None:
        """A page without copying it, its checksums compared now; None if it is gone or damaged."""
        store = entry.directory.usable()
        return None if store is None else self._try(entry.directory, lambda: store.view(key, entry.entry), None)

    def put(
        self, name: ObjectName, index: int, version: Version, payload: Any, *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> bool:  # fmt: skip
        """Keep a page where it belongs; what other directories have of it, from when they were fewer, goes."""
        key = name.key(index)
        known = self.lookup(key)
        home = known.directory if known is not None and known.version == version.digest else self._home(name, index)
        store = None if home is None else home.usable()
        if home is None or store is None:
            return False
        kept = self._try(
            home,
            lambda: store.put(name, index, version, payload, rule=rule, life=life, checked_at=checked_at),
            False,
        )
        if kept and known is not None and known.directory is not home:
            self._drop(known.directory, key)
        if not kept and (gone := home.gone()):
            home.failed(gone)
        return kept

    def put_many(
        self, pages: Sequence[tuple[ObjectName, int, Version, Any]], *,
        rule: int = 0, life: PageLife = PageLife.NORMAL, checked_at: float,
    ) -> list[bool]:  # fmt: skip
        """Keep pages that came together, each where it belongs."""
        return [self.put(*page, rule=rule, life=life, checked_at=checked_at) for page in pages]

    def confirm(self, key: bytes, entry: Placed, checked_at: float) -> None:
        """The store said that an entry's version is still the object's."""
        if (store := entry.directory.usable()) is not None:
            self._try(entry.directory, lambda: store.confirm(key, entry.entry, checked_at), None)

    def reads(self) -> Reads:
        """How many reads found their page, in any of them."""
        found = [one.store.reads() for one in self.directories if one.store is not None]
        return Reads(sum(reads.found for reads in found), sum(reads.missed for reads in found))

    def drop(self, *keys: bytes) -> None:
        """Forget pages."""
        for directory in self.directories:
            self._drop(directory, *keys)

    @contextlib.contextmanager
    def filling(self, key: bytes) -> Generator[None]:
        """One thread of all processes fetches a page; look it up again once inside."""
        with contextlib.ExitStack() as held:
            for directory in self.directories:
                store = directory.usable()
                if store is not None and self._try(
                    directory, lambda store=store: held.enter_context(store.filling(key)) or True, False
                ):
                    break
            yield

    def pinned_pages(self) -> Iterator[HeldPage]:
        """Pages in files that only go when they are unpinned."""
        for directory in self.directories:
            if (store := directory.usable()) is not None:
                yield from store.pinned_pages()

    def close(self) -> None:
        """Unmap all files."""
        for directory in self.directories:
            if directory.store is not None:
                directory.store.close()

    def _drop(self, directory: Directory, *keys: bytes) -> None:
        if (store := directory.usable()) is not None:
            self._try(directory, lambda: store.drop(*keys), None)

    def _home(self, name: ObjectName, index: int) -> Directory | None:
        """The directory of a chunk; without one of them only its own chunks have another (rendezvous hashing)."""
        position, best, most = chunk_position(name, index), None, -1.0
        for directory in self.directories:
            store = directory.usable()
            if store is None:
                continue
            drawn = xxhash.xxh3_64_intdigest(position.to_bytes(8, "little"), seed=self._seeds[id(directory)])
            score = store.limit_bytes / -math.log(((drawn >> 12) + 0.5) / (1 << 52))
            if score > most:
                best, most = directory, score
        return best

    @staticmethod
    def _try(directory: Directory, work: Callable[[], _Result], otherwise: _Result) -> _Result:
        """Treats a broken disk as a miss, and avoids it for a while."""
        try:
            return work()
        except OSError as error:
            directory.failed(error)
            return otherwise


def open_directories(asked: Sequence[CacheSettings]) -> Directories:
    """The directories; unusable ones carry their fault.

    Args:
        asked: settled settings of each.

    Raises:
        ConfigError: none is usable.
    """
    opened = [_open(settings) for settings in asked]
    if all(directory.store is None for directory in opened):
        faults = "; ".join(f"{directory.path}: {directory.fault}" for directory in opened)
        raise ConfigError(f"`--dir` must name a directory that can be used, got {faults}")
    return Directories(opened)


def _open(settings: CacheSettings) -> Directory:
    path = Path(settings.directory)
    try:
        # What a worker sends to others it compares with its checksum whatever is set for programs of this machine.
        return Directory(path, page_store(replace(settings, verify="always")))
    # Damage shows in many ways: as another format, a short file, an index of nonsense. The others go on.
    except (CacheError, OSError, ValueError) as error:
        return Directory(path, None, _words(error))


def _words(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(reason.split()) or type(error).__name__
