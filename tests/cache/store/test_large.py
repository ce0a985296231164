"""Large objects: one file whose bytes are the object's."""

from __future__ import annotations

import mmap
import os
import random
import time
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from stoker.cache.names import PAGE_BYTES, ObjectName, pages_of, span_of
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

NAME = ObjectName("s3||", "bucket/large")
SIZE = 5 * PAGE_BYTES + 12_345
LIMIT = 40 << 20
SETTINGS = StoreSettings(limit_bytes=LIMIT, keep_free_frac=0.0, eviction="lru")


def bytes_of(seed: int, size: int = SIZE) -> bytes:
    part = random.Random(seed).randbytes(9973)
    return (part * (size // len(part) + 1))[:size]


def version_of(token: str, size: int = SIZE) -> Version:
    return Version(Strength.ETAG, token, size)


def put_all(store: PageStore, name: ObjectName, token: str, content: bytes, at: float = 1.0) -> list[bool]:
    version = version_of(token, len(content))
    indexes = list(pages_of(0, len(content)))
    random.Random(0).shuffle(indexes)
    return [
        store.put(name, index, version, content[slice(*span_of(index, len(content)))], checked_at=at)
        for index in indexes
    ]


def read_all(store: PageStore, name: ObjectName, size: int = SIZE) -> bytes | None:
    content = bytearray(size)
    for index in pages_of(0, size):
        key = name.key(index)
        entry = store.lookup(key)
        if entry is None or not store.read_into(key, entry, 0, memoryview(content)[slice(*span_of(index, size))]):
            return None
    return bytes(content)


def test_pages_are_one_file(tmp_path: Path) -> None:
    content = bytes_of(1)
    with PageStore(tmp_path, SETTINGS) as store:
        assert store.large(NAME, version_of("a")) is None
        assert all(put_all(store, NAME, "a", content))
        large = store.large(NAME, version_of("a"))
        assert large is not None
        assert large.complete
        assert large.is_intact()
        assert large.path.read_bytes() == content
        buffer = memoryview(bytearray(3 * PAGE_BYTES))
        assert large.read_into(PAGE_BYTES - 77, buffer)
        assert buffer == content[PAGE_BYTES - 77 :][: len(buffer)]
        assert not large.read_into(SIZE - 10, memoryview(bytearray(11)))
        assert store.large(NAME, version_of("b")) is None
    with PageStore(tmp_path, SETTINGS) as store:
        assert read_all(store, NAME) == content
        assert all(put_all(store, NAME, "a", content))


def test_parts_of_an_object(tmp_path: Path) -> None:
    content = bytes_of(2)
    with PageStore(tmp_path, SETTINGS) as store:
        large = store.large(NAME, version_of("a"), create=True, checked_at=time.time())
        assert large is not None
        assert not large.has(2)
        assert large.write(2, content[2 * PAGE_BYTES : 3 * PAGE_BYTES])
        assert large.has(2)
        assert not large.complete
        assert not large.write(3, b"too short")
        buffer = memoryview(bytearray(100))
        assert large.read_into(2 * PAGE_BYTES + 5, buffer)
        assert not large.read_into(3 * PAGE_BYTES - 50, buffer)
        # Only what is there takes room on the disk.
        assert large.path.stat().st_blocks * 512 <= PAGE_BYTES + 8192


def test_another_version_gets_another_file(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        put_all(store, NAME, "a", bytes_of(1), at=10.0)
        old = store.large(NAME, version_of("a"))
        assert old is not None
        with open(old.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        assert all(put_all(store, NAME, "b", bytes_of(2), at=20.0))
        assert read_all(store, NAME) == bytes_of(2)
        assert not any(put_all(store, NAME, "a", bytes_of(1), at=15.0))
        assert read_all(store, NAME) == bytes_of(2)
        assert mapped[:] == bytes_of(1)


def test_a_damaged_page_is_a_miss_and_its_object_is_stored_anew(tmp_path: Path) -> None:
    content = bytes_of(3)
    with PageStore(tmp_path, SETTINGS) as store:
        put_all(store, NAME, "a", content)
        large = store.large(NAME, version_of("a"))
        assert large is not None
        fd = os.open(large.path, os.O_RDWR)
        os.pwrite(fd, bytes([content[PAGE_BYTES + 70_000] ^ 1]), PAGE_BYTES + 70_000)
        os.close(fd)
        assert read_all(store, NAME) is None
        assert all(put_all(store, NAME, "a", content))
        assert read_all(store, NAME) == content
        again = store.large(NAME, version_of("a"))
        assert again is not None
        assert again.path != large.path


@pytest.mark.parametrize("at", [10, 70_000])
def test_damage_is_seen_at_the_first_touch_of_a_part(tmp_path: Path, at: int) -> None:
    content = bytes_of(3)
    with PageStore(tmp_path, replace(SETTINGS, verify="first-touch")) as store:
        put_all(store, NAME, "a", content)
        large = store.large(NAME, version_of("a"))
        pages = store.large_pages(NAME, version_of("a"))
        assert large is not None
        assert pages is not None
        fd = os.open(large.path, os.O_RDWR)
        os.pwrite(fd, bytes([content[PAGE_BYTES + at] ^ 1]), PAGE_BYTES + at)
        os.close(fd)
        part = memoryview(bytearray(100))
        assert pages.read_into(PAGE_BYTES + at, part) == 0
        assert not large.read_into(PAGE_BYTES + at, part)


@pytest.mark.parametrize("verify", ["always", "first-touch"])
def test_reading_in_order_finds_pages_in_the_file(tmp_path: Path, verify: Literal["always", "first-touch"]) -> None:
    content = bytes_of(4)
    with PageStore(tmp_path, replace(SETTINGS, verify=verify)) as store:
        put = [store.put(NAME, i, version_of("a"), content[slice(*span_of(i, SIZE))], checked_at=1.0) for i in (0, 1)]
        assert all(put)
        pages = store.large_pages(NAME, version_of("a"))
        assert pages is not None
        buffer = memoryview(bytearray(SIZE))
        for _ in range(2):  # the second time first-touch finds all marks
            assert pages.read_into(77, buffer[77:]) == 2 * PAGE_BYTES - 77  # up to the first page that is missing
            assert buffer[77 : 2 * PAGE_BYTES] == content[77 : 2 * PAGE_BYTES]
        pages.look_on()
        assert not pages.is_complete
        put_all(store, NAME, "a", content)
        pages.look_on()
        assert pages.is_complete
        for _ in range(2):
            assert pages.read_into(0, buffer) == SIZE
            assert buffer == content
        store.evict()
        assert pages.read_into(0, buffer) == 0
        assert store.large_pages(NAME, version_of("a")) is None


@pytest.mark.parametrize("verify", ["always", "first-touch"])
def test_small_reads_of_blocks_that_are_known_give_the_bytes(
    tmp_path: Path, verify: Literal["always", "first-touch"]
) -> None:
    """Across pieces, blocks and pages, and up to the end; the file may go all the same."""
    content = bytes_of(6)
    with PageStore(tmp_path, replace(SETTINGS, verify=verify)) as store:
        put_all(store, NAME, "a", content)
        pages = store.large_pages(NAME, version_of("a"))
        assert pages is not None
        choose = random.Random(1)
        known = 0
        for _ in range(3000):
            length = choose.choice([1, 100, 4096, 20_000, 70_000])
            start = choose.choice([choose.randrange(SIZE - length), 65_536 - 50, PAGE_BYTES - 50, SIZE - length])
            part = bytearray(length)
            known += pages.read_known(start, memoryview(part)) or pages.read_into(start, memoryview(part)) - length
            assert part == content[start : start + length]
        assert known > 1000
        store.evict()
        assert not pages.read_known(0, memoryview(bytearray(100)))
        assert not list((tmp_path / "large").iterdir())


@pytest.mark.parametrize("reads", [1, 2, 5])
def test_a_flipped_bit_is_found_however_often_its_block_was_read(tmp_path: Path, reads: int) -> None:
    content = bytes_of(7)
    with PageStore(tmp_path, SETTINGS) as store:
        put_all(store, NAME, "a", content)
        pages, large = store.large_pages(NAME, version_of("a")), store.large(NAME, version_of("a"))
        assert pages is not None
        assert large is not None
        part, at = bytearray(4096), 2 * PAGE_BYTES + 70_000
        for _ in range(reads):
            assert pages.read_known(at, memoryview(part)) or pages.read_into(at, memoryview(part)) == len(part)
        fd = os.open(large.path, os.O_RDWR)
        os.pwrite(fd, bytes([content[at + 100] ^ 1]), at + 100)
        os.close(fd)
        assert not pages.read_known(at, memoryview(part))
        assert pages.read_into(at, memoryview(part)) == 0


def test_objects_are_evicted_whole_and_the_limit_holds(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        for i in range(14):
            name = ObjectName("s3||", f"bucket/{i}")
            assert all(put_all(store, name, "a", bytes_of(i)))
            assert read_all(store, name) == bytes_of(i)
            used = sum(path.stat().st_blocks * 512 for path in tmp_path.rglob("*") if path.is_file())
            assert used <= LIMIT
        there = [read_all(store, ObjectName("s3||", f"bucket/{i}")) is not None for i in range(14)]
        assert 4 <= sum(there) <= LIMIT // SIZE
        assert there == sorted(there)


@pytest.mark.parametrize("size", [(4 << 20) - 1, LIMIT // 4 + PAGE_BYTES])
def test_other_sizes_have_no_file(tmp_path: Path, size: int) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        assert store.large(NAME, version_of("a", size), create=True) is None
        page = bytes_of(4, PAGE_BYTES)
        assert store.put(NAME, 1, version_of("a", size), page, checked_at=1.0)
        entry = store.lookup(NAME.key(1))
        assert entry is not None
        assert store.view(NAME.key(1), entry) == page
