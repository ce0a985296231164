"""Small reads that are repeated: right bytes, and damage found at every one of them."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.store.block_sum_cache import LONGEST_BYTES, PIECE_BYTES
from stoker.cache.store.files.checksums import BLOCK_BYTES
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

NAME = ObjectName("memory", "bucket/key")
SETTINGS = StoreSettings(limit_bytes=256 << 20, keep_free_frac=0.0)


def stored(directory: Path, size: int, object_size: int | None = None) -> tuple[PageStore, bytes, Version]:
    data = np.random.default_rng(size).bytes(size)
    version = Version(Strength.ETAG, "one", object_size or size)
    store = PageStore(directory, SETTINGS)
    assert store.put(NAME, 0, version, data, checked_at=time.time())
    return store, data, version


def read(store: PageStore, start: int, length: int) -> bytes | None:
    key = NAME.key(0)
    entry = store.lookup(key)
    if entry is None:
        return None
    buffer = memoryview(bytearray(length))
    return bytes(buffer) if store.read_into(key, entry, start, buffer) else None


@settings(max_examples=30, deadline=None)
@given(
    size=st.sampled_from([1, PIECE_BYTES, 30_000, BLOCK_BYTES, BLOCK_BYTES + 1, 300_001, PAGE_BYTES]),
    reads=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 2 * LONGEST_BYTES)), min_size=1, max_size=12),
)
def test_repeated_small_reads_give_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, size: int, reads: list[tuple[float, int]]
) -> None:
    store, data, _ = stored(tmp_path_factory.mktemp("store"), size)
    with store:
        for where, length in reads * 3:
            start = int(where * (size - 1))
            length = min(length, size - start)
            assert read(store, start, length) == data[start : start + length]


@pytest.mark.parametrize("object_size", [PAGE_BYTES, 8 << 20], ids=["segment", "large"])
@pytest.mark.parametrize("reads", [1, 2, 5])
def test_a_flipped_bit_is_found_however_often_the_piece_was_read(tmp_path: Path, object_size: int, reads: int) -> None:
    store, data, _ = stored(tmp_path, PAGE_BYTES, object_size)
    with store:
        start = 3 * BLOCK_BYTES + 2 * PIECE_BYTES
        for _ in range(reads):
            assert read(store, start, PIECE_BYTES) == data[start : start + PIECE_BYTES]
        (file,) = (path for path in store.layout.page_files() if path.suffix != ".pages")
        at = file.read_bytes().index(data[start : start + 64]) + 100
        with open(file, "r+b") as damaged:
            damaged.seek(at)
            damaged.write(bytes([data[start + 100] ^ 1]))
        assert read(store, start, PIECE_BYTES) is None
        assert store.stats().damaged == 1


def test_pieces_of_a_page_that_was_replaced_are_not_those_of_the_new_one(tmp_path: Path) -> None:
    store, data, _ = stored(tmp_path, PAGE_BYTES)
    with store:
        for _ in range(4):
            assert read(store, 0, PIECE_BYTES) == data[:PIECE_BYTES]
        other = bytes(PAGE_BYTES)
        assert store.put(NAME, 0, Version(Strength.ETAG, "two", PAGE_BYTES), other, checked_at=time.time() + 1)
        for _ in range(4):
            assert read(store, 0, PIECE_BYTES) == bytes(PIECE_BYTES)
        store.evict(NAME)
        assert read(store, 0, PIECE_BYTES) is None
