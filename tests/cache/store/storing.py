"""Programs that tests run in processes of their own: they write and read one store, and check every byte they get."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path

from stoker.cache.names import ObjectName, pages_of, span_of
from stoker.cache.policies import Policy
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

LIMIT = 24 << 20
OBJECTS = 400
LARGE = 3
"""Of the objects, are large."""
CONTEXT = multiprocessing.get_context("fork")


def settings(policy: Policy = "lru", limit: int = LIMIT) -> StoreSettings:
    return StoreSettings(limit_bytes=limit, keep_free_frac=0.0, eviction=policy)


def name_of(i: int) -> ObjectName:
    return ObjectName("s3||", f"bucket/{i}")


def size_of(i: int) -> int:
    return (4 << 20) + 1000 * (i + 1) if i < LARGE else 500 + (i * 7919) % 150_000


def page_of(i: int, version: int, index: int) -> bytes:
    """The right bytes of a page: told by object, version and place."""
    start, end = span_of(index, size_of(i))
    return random.Random((i << 40) + (version << 20) + index).randbytes(min(end - start, 997)).ljust(end - start, b"\7")


def version_of(i: int, version: int) -> Version:
    return Version(Strength.ETAG, str(version), size_of(i))


def put(store: PageStore, i: int, version: int, index: int = 0) -> bool:
    payload = page_of(i, version, index)
    return store.put(name_of(i), index, version_of(i, version), payload, checked_at=float(version))


def insist(store: PageStore, i: int, version: int) -> bool:
    """Put a page for which there is room, once the store asks for room again."""
    deadline = time.monotonic() + 10
    while not (done := put(store, i, version)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return done


def check(store: PageStore, i: int, index: int = 0, versions: range = range(8)) -> int | None:
    """Version of a page that is there, whose bytes are right; None if it is not there."""
    key = name_of(i).key(index)
    entry = store.lookup(key)
    if entry is None:
        return None
    buffer = bytearray(entry.length)
    if not store.read_into(key, entry, 0, memoryview(buffer)):
        return None
    (version,) = [v for v in versions if version_of(i, v).digest == entry.version]
    assert entry.checked_at == version
    assert entry.object_size == size_of(i)
    assert bytes(buffer) == page_of(i, version, index), (i, version, index)
    return version


def work(
    directory: Path, seed: int, seconds: float, policy: Policy = "lru", progress: Callable[[], object] | None = None
) -> None:
    """Put and read at random for some time."""
    rng = random.Random(seed)
    deadline = time.monotonic() + seconds
    with PageStore(directory, settings(policy)) as store:
        while time.monotonic() < deadline:
            i = rng.randrange(OBJECTS)
            index = rng.choice(pages_of(0, size_of(i)))
            if check(store, i, index) is None or rng.random() < 0.05:
                put(store, i, rng.randrange(8), index)
            if progress is not None:
                progress()


def disk_bytes(directory: Path) -> int:
    """What all files take at one moment: files come and go between two looks, so looks are repeated until two agree."""
    last = _sizes(directory)
    for _ in range(50):
        now = _sizes(directory)
        if now == last:
            break
        last = now
    return min(sum(now.values()), sum(last.values()))


def _sizes(directory: Path) -> dict[Path, int]:
    found: dict[Path, int] = {}
    for path in directory.rglob("*"):
        try:
            found[path] = path.stat().st_blocks * 512
        except FileNotFoundError:
            pass  # evicted just now
    return found


def check_all(store: PageStore) -> int:
    """Number of pages that are there; all their bytes are right."""
    return len(_there(store))


def held_bytes(store: PageStore) -> int:
    """Bytes of the pages that are there, which are all right."""
    return sum(end - start for start, end in _there(store))


def _there(store: PageStore) -> list[tuple[int, int]]:
    """Where in its object each page that is there begins and ends."""
    return [
        span_of(index, size_of(i))
        for i in range(OBJECTS)
        for index in pages_of(0, size_of(i))
        if check(store, i, index) is not None
    ]
