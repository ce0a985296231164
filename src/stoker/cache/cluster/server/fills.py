"""How a worker fetches missing pages: one fetch per page for any number of clients, in separate threads.

Serving threads only wait here. A page comes from the previous owner where the ring has just changed, else from the
store; a page that cannot be stored (a full disk, all pages in use) still reaches the clients that wait for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from stoker.cache.cluster.messages.frames import MAX_DESCRIPTION_BYTES, Reason
from stoker.cache.cluster.server.protocols import Mount
from stoker.cache.names import ObjectName, span_of
from stoker.cache.object_metadata import Description
from stoker.cache.policies import PageLife, Rule
from stoker.cache.protocols import Pages
from stoker.cache.rules import Rules
from stoker.cache.versions import Version
from stoker.core.errors import SourceChangedError

FETCH_THREADS = 32
MAX_IN_FLIGHT = 256
"""Most pages being fetched or queued; more are refused, and the client reads the store itself."""
_KNOWN_VERSIONS = 100_000


class NotServed(Exception):  # an answer, not a failure
    """The reason why a page or a version is unavailable."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.name)
        self.reason = reason


class _Known(NamedTuple):
    """A store's metadata of an object, and when it was fetched (seconds since the epoch)."""

    version: Version
    asked_at: float
    description: bytes


Elsewhere = Callable[[ObjectName, int, Version, bool], bytes | None]
"""Asks the page's earlier owners for it, for a copy the owner first; None where there is none or it has none."""
Owns = Callable[[ObjectName, int], bool]
"""Whether a page is this worker's to keep, and no copy of what another one keeps."""


class Fills:
    """Fetches pages into the store.

    Args:
        pages: where they are kept.
        rules: freshness and lives by path.
        elsewhere: asked before the store.
        owns: which pages are to be kept.
        threads: fetches at the same time.
    """

    def __init__(
        self, pages: Pages, rules: Sequence[Rule], elsewhere: Elsewhere, owns: Owns, *, threads: int = FETCH_THREADS
    ) -> None:
        self._pages = pages
        self._rules = rules
        self._by_protocol: dict[str, Rules] = {}
        self._elsewhere, self._owns = elsewhere, owns
        self._pool = ThreadPoolExecutor(threads, "stoker-fill")
        self._lock = threading.Lock()
        self._flying: dict[tuple[bytes, int], Future[bytes]] = {}
        self._asking: dict[tuple[str, str], Future[Version]] = {}
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self.fetched_bytes = 0
        self.fetches = 0
        self.moved = self.moved_bytes = 0
        self.failures = 0

    @property
    def in_flight(self) -> int:
        """Pages being fetched or waiting for it."""
        return len(self._flying)

    def page(
        self, mount: Mount, name: ObjectName, index: int, version: Version, *, copy: bool = False, pin: bool = False
    ) -> Future[bytes]:
        """The bytes of a page, once they are fetched; fails with :class:`NotServed`.

        Args:
            mount: of the object.
            name: of the object.
            index: of the page.
            version: wanted.
            copy: ask the page's owner first, which fetches the page if necessary.
            pin: the page is kept until it is unpinned.
        """
        flight = (name.key(index), version.digest)
        with self._lock:
            future = self._flying.get(flight)
            if future is not None:
                return future
            future = Future[bytes]()
            if len(self._flying) >= MAX_IN_FLIGHT:
                future.set_exception(NotServed(Reason.BUSY))
                return future
            self._flying[flight] = future
        self._start(
            future, lambda: self._fetch(mount, name, index, version, copy, pin), lambda: self._flying.pop(flight, None)
        )
        return future

    def version(self, mount: Mount, path: str, max_age_s: float = math.inf) -> Future[Version]:
        """The version of an object, no staler than its rule and ``max_age_s`` allow; fails with :class:`NotServed`."""
        asked = (mount.namespace, path)
        _, rule = self._rule(mount, path)
        with self._lock:
            known = self._known.get(asked)
            now = time.time()
            if known is not None and rule.is_fresh(known.asked_at, now) and 0.0 <= now - known.asked_at < max_age_s:
                future = Future[Version]()
                future.set_result(known.version)
                return future
            future = self._asking.get(asked)
            if future is not None:
                return future
            future = self._asking[asked] = Future[Version]()
        self._start(future, lambda: self._ask(mount, path), lambda: self._asking.pop(asked, None))
        return future

    def about(self, mount: Mount, path: str) -> tuple[Version, float, bytes] | None:
        """The last known metadata of an object: its version, its age in seconds, and the details; None if unknown."""
        with self._lock:
            known = self._known.get((mount.namespace, path))
        return None if known is None else (known.version, max(0.0, time.time() - known.asked_at), known.description)

    def close(self) -> None:
        """Ends the threads; fetches that have not begun are dropped."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self, future: Future[Any], work: Callable[[], Any], done: Callable[[], object]) -> None:
        def run() -> None:
            try:
                result = work()
            except NotServed as answer:
                error: Exception = answer
            except FileNotFoundError:
                error = NotServed(Reason.NOT_FOUND)
            except SourceChangedError:
                error = NotServed(Reason.CHANGED)
            # A task boundary: whatever the store's library raises, the client gets an answer and reads by itself.
            except Exception:
                self.failures += 1
                error = NotServed(Reason.STORE_FAILED)
            else:
                self._finish(done)
                future.set_result(result)
                return
            self._finish(done)
            future.set_exception(error)

        try:
            self._pool.submit(run)
        except RuntimeError:  # the worker is ending
            self._finish(done)
            future.set_exception(NotServed(Reason.DRAINING))

    def _rule(self, mount: Mount, path: str) -> tuple[int, Rule]:
        rules = self._by_protocol.get(mount.protocol)
        if rules is None:
            rules = self._by_protocol[mount.protocol] = Rules(self._rules, mount.protocol)
        return rules.of(path)

    def _finish(self, done: Callable[[], object]) -> None:
        with self._lock:
            done()

    def _ask(self, mount: Mount, path: str) -> Version:
        asked_at = time.time()
        info = mount.source.info(path)
        if not info.is_file:
            raise NotServed(Reason.NOT_FOUND)
        version = info.version
        description = Description(version, info.details).encode()
        known = _Known(version, asked_at, description if len(description) <= MAX_DESCRIPTION_BYTES else b"")
        with self._lock:
            self._known[(mount.namespace, path)] = known
            self._known.move_to_end((mount.namespace, path))
            if len(self._known) > _KNOWN_VERSIONS:
                self._known.popitem(last=False)
        return version

    def _fetch(self, mount: Mount, name: ObjectName, index: int, version: Version, copy: bool, pin: bool) -> bytes:
        number, rule = self._rule(mount, name.path)
        if not rule.cached or not version.storable:
            raise NotServed(Reason.NOT_CACHED)
        start, end = span_of(index, version.size)
        if start >= end:
            raise NotServed(Reason.MALFORMED)
        key = name.key(index)
        life = PageLife.PINNED if pin else rule.life if self._owns(name, index) else PageLife.COPY
        with self._pages.filling(key):  # another process on the same directory may be filling it
            entry = self._pages.lookup(key)
            if entry is not None and entry.version == version.digest:
                data = bytearray(entry.length)
                if self._pages.read_into(key, entry, 0, memoryview(data)):
                    if pin:
                        self._pages.put(name, index, version, data, rule=number, life=life, checked_at=entry.checked_at)
                    return bytes(data)
            payload = self._elsewhere(name, index, version, copy)
            checked_at = time.time()
            if payload is None:
                payload = mount.source.read(name.path, start, end, version)
                self.fetches += 1
                self.fetched_bytes += len(payload)
            else:
                self.moved += 1
                self.moved_bytes += len(payload)
            if len(payload) != end - start:
                raise NotServed(Reason.STORE_FAILED)
            self._pages.put(name, index, version, payload, rule=number, life=life, checked_at=checked_at)
        return payload
