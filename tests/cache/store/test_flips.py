"""Flipped bits in any file of the store: right bytes or none, and no exception, in a store that is open or opened."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from stoker.cache.names import pages_of
from stoker.cache.store.page_store import PageStore
from tests.cache.store import storing

pytestmark = pytest.mark.integration

LIMIT = 20 << 20
LARGE = 0


def fill(directory: Path) -> None:
    """Small pages in several segments, a large object, a pin."""
    with PageStore(directory, storing.settings("lru", LIMIT)) as store:
        for i in range(100, 180):
            assert storing.put(store, i, i % 8)
        for index in pages_of(0, storing.size_of(LARGE)):
            assert storing.put(store, LARGE, 1, index)
        store.pin(storing.name_of(101))


def flip(path: Path, choose: random.Random, most: int) -> None:
    """Bits where there is data, mostly near the begin."""
    with open(path, "r+b", buffering=0) as file:
        fd, size = file.fileno(), os.fstat(file.fileno()).st_size
        for _ in range(choose.randint(1, most)):
            at = os.lseek(fd, choose.randrange(size), os.SEEK_SET)
            if choose.random() < 0.7:
                at = choose.randrange(min(size, 4096 + 128 * 20))
            old = os.pread(fd, 1, at)
            os.pwrite(fd, bytes([old[0] ^ 1 << choose.randrange(8)]), at)


def use(store: PageStore, choose: random.Random) -> None:
    """Everything that programs and people do."""
    storing.check_all(store)
    for i in choose.sample(range(100, 250), 20):
        storing.put(store, i, i % 8)
    storing.put(store, LARGE, 1, 0)
    storing.check_all(store)
    list(store.names())
    store.stats()
    store.pinned()
    store.pin(storing.name_of(102))
    store.unpin(storing.name_of(10))
    store.compact()
    store.verify()
    store.evict(storing.name_of(11))


FIELDS = {
    "next number": (8 + 4, b"\xff\xff\xff\xff"),
    "bytes of a free row": (4096 + 128 * 40 + 16 + 4, b"\x07"),
    "state": (4096 + 4, b"\x77"),
    "life": (4096 + 6, b"\x77"),
    "end of a segment": (4096 + 24, b"\x01"),
    "end beyond a segment": (4096 + 24 + 5, b"\x77"),
    "kind": (4096 + 5, b"\x77"),
}
"""Of the table: places that have no checksum and would do lasting harm, and what stands there then."""


@pytest.mark.parametrize("field", FIELDS)
def test_fields_of_the_table(tmp_path: Path, field: str) -> None:
    fill(tmp_path)
    at, content = FIELDS[field]
    with open(tmp_path / "table", "r+b") as file:
        if field == "bytes of a free row":
            file.seek(16)
            file.write(b"\x30")  # so many rows were used
        file.seek(at)
        file.write(content)
    choose = random.Random(field)
    settings = storing.settings("lru", LIMIT)
    with PageStore(tmp_path, settings) as store:
        use(store, choose)
        store.evict()
    with PageStore(tmp_path, settings) as store:
        assert store.stats().used_bytes < LIMIT // 2
        assert all(storing.insist(store, i, 1) for i in range(300, 320))
        assert all(storing.check(store, i) == 1 for i in range(300, 320))


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", ["table", "pulse", "pins", "index", "segments", "large"])
def test_any_file(tmp_path: Path, name: str, is_open: bool) -> None:
    choose = random.Random(f"{name}{is_open}")
    for attempt in range(2):
        directory = tmp_path / str(attempt)
        fill(directory)
        path = directory / name
        if path.is_dir():
            path = choose.choice(sorted(path.iterdir()))
        settings = storing.settings("lru", LIMIT)
        if is_open:
            with PageStore(directory, settings) as store:
                storing.check_all(store)
                flip(path, choose, 40)
                use(store, choose)
        else:
            flip(path, choose, 40)
        with PageStore(directory, settings) as store:
            use(store, choose)
            assert store.evict().pages >= 0
            assert storing.insist(store, 399, 1)
            assert storing.check(store, 399) == 1
