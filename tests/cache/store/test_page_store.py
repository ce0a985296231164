"""One process: what is put is read, and survives a restart."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.cache.names import DESCRIPTION, PAGE_BYTES, ObjectName
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

NAME = ObjectName("s3||", "bucket/key")
SETTINGS = StoreSettings(limit_bytes=64 << 20, keep_free_frac=0.0)


def version_of(size: int, token: str = "one") -> Version:
    return Version(Strength.ETAG, token, size)


def read(store: PageStore, name: ObjectName, index: int, start: int = 0, length: int | None = None) -> bytes | None:
    key = name.key(index)
    entry = store.lookup(key)
    if entry is None:
        return None
    buffer = bytearray(entry.length - start if length is None else length)
    return bytes(buffer) if store.read_into(key, entry, start, memoryview(buffer)) else None


@pytest.mark.parametrize("size", [0, 1, 100, 65536, 65537, 200_001, PAGE_BYTES])
def test_what_is_put_is_read(tmp_path: Path, size: int) -> None:
    payload = os.urandom(size)
    with PageStore(tmp_path, SETTINGS) as store:
        now = time.time()
        assert store.put(NAME, 0, version_of(size), payload, rule=3, checked_at=now)
        entry = store.lookup(NAME.key(0))
        assert entry is not None
        assert (entry.version, entry.object_size, entry.length, entry.rule) == (version_of(size).digest, size, size, 3)
        assert now - 0.01 <= entry.checked_at <= now
        assert read(store, NAME, 0) == payload
        view = store.view(NAME.key(0), entry)
        assert view is not None
        assert view.readonly
        assert bytes(view) == payload
        for start, length in [(0, 10), (5, 70_000), (65_000, 2000), (size - 1, 1)]:
            if start >= 0 and start + length <= size:
                assert read(store, NAME, 0, start, length) == payload[start : start + length]


def test_pages_survive_a_restart(tmp_path: Path) -> None:
    pages = {i: os.urandom(1000 + i) for i in range(300)}
    with PageStore(tmp_path, SETTINGS) as store:
        for i, page in pages.items():
            assert store.put(NAME, i, version_of(9), page, checked_at=1.0)
    with PageStore(tmp_path, SETTINGS) as store:
        assert {i: read(store, NAME, i) for i in pages} == pages


def test_a_new_version_replaces_the_old_one(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        assert store.put(NAME, 0, version_of(1, "old"), b"a", checked_at=10.0)
        assert store.put(NAME, 0, version_of(1, "new"), b"b", checked_at=20.0)
        assert read(store, NAME, 0) == b"b"
        assert not store.put(NAME, 0, version_of(1, "old"), b"a", checked_at=15.0)
        assert read(store, NAME, 0) == b"b"


def test_a_version_that_nothing_tells_apart_is_not_kept(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        assert not store.put(NAME, 0, Version(Strength.NONE, "", 1), b"a", checked_at=1.0)
        assert store.lookup(NAME.key(0)) is None


def test_confirming_moves_the_time(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        store.put(NAME, 0, version_of(1), b"a", checked_at=10.0)
        entry = store.lookup(NAME.key(0))
        assert entry is not None
        store.confirm(NAME.key(0), entry, 20.0)
        store.confirm(NAME.key(0), entry, 15.0)
        later = store.lookup(NAME.key(0))
        assert later == entry._replace(checked_at=20.0)


def test_descriptions(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        assert store.description(NAME) is None
        assert store.describe(NAME, version_of(7), b"{}", checked_at=1.0)
        found = store.description(NAME)
        assert found is not None
        assert (found[0].version, found[1]) == (version_of(7).digest, b"{}")
        store.drop(NAME.key(DESCRIPTION))
        assert store.description(NAME) is None


def test_pages_that_come_together_are_kept_as_those_that_come_alone(tmp_path: Path) -> None:
    names = [ObjectName("s3||", f"bucket{i % 3}/{i}") for i in range(300)]
    with PageStore(tmp_path, SETTINGS) as store:
        assert store.put(names[7], 0, version_of(5, "later"), b"newer", checked_at=2.0)
        assert store.put(names[9], 0, version_of(5), b"bytes", checked_at=1.0)
        first = [(name, 0, version_of(5), b"bytes") for name in names]
        first += [
            (names[1], 0, version_of(5), b"bytes"),  # twice in one call
            (names[2], 0, Version(Strength.NONE, "", 5), b"bytes"),
            (names[3], 0, version_of(5 * PAGE_BYTES, "large"), bytes(PAGE_BYTES)),
            (ObjectName("s3||", "b" * 70_000), 0, version_of(5), b"bytes"),
        ]
        kept = store.put_many(first, checked_at=1.0)
        # What is out of date, or cannot be kept, does not keep the others from it.
        assert [place for place, is_kept in enumerate(kept) if not is_kept] == [7, 301, 303]
        assert store.stats().live.pages == 300
    with PageStore(tmp_path, SETTINGS) as store:
        for name in names[:3] + names[4:]:
            entry = store.lookup(name.key(0))
            assert entry is not None
            view = store.view(name.key(0), entry)
            assert view == (b"newer" if name is names[7] else b"bytes")
        assert store.verify().intact.pages == 300
        assert {held.name for held in store.names()} == set(names)


def test_many_pages_are_dropped_at_once_and_others_stay(tmp_path: Path) -> None:
    with PageStore(tmp_path, SETTINGS) as store:
        names = [ObjectName("s3||", f"bucket/{i}") for i in range(150)]
        for name in names:
            assert store.put(name, 0, version_of(5), b"bytes", checked_at=1.0)
        store.drop(*[name.key(0) for name in names[10:]], names[10].key(7))
        assert [store.lookup(name.key(0)) is not None for name in names] == [i < 10 for i in range(150)]
        assert store.stats().live.pages == 10


def test_a_view_outlives_the_page_and_the_store(tmp_path: Path) -> None:
    store = PageStore(tmp_path, SETTINGS)
    store.put(NAME, 0, version_of(5), b"bytes", checked_at=1.0)
    entry = store.lookup(NAME.key(0))
    assert entry is not None
    view = store.view(NAME.key(0), entry)
    store.drop(NAME.key(0))
    assert store.lookup(NAME.key(0)) is None
    store.close()
    assert view == b"bytes"
