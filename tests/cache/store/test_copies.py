"""Pages that are copies of what another worker keeps: first to go, never at the cost of others."""

from __future__ import annotations

import time
from pathlib import Path

from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.policies import PageLife
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version

LIMIT = 24 << 20
PAGE = 100_000


def put(store: PageStore, number: int, life: PageLife) -> bool:
    """Put a page, a second time if what made room was not yet gone."""
    name, version = ObjectName("s3||", f"b/{number}"), Version(Strength.ETAG, "e", PAGE)
    deadline = time.monotonic() + 1.0
    while True:
        if store.put(name, 0, version, bytes([number % 251]) * PAGE, life=life, checked_at=time.time()):
            return True
        if time.monotonic() > deadline or life is PageLife.COPY:
            return False
        time.sleep(0.001)


def held(store: PageStore, numbers: range) -> list[int]:
    keys = {number: ObjectName("s3||", f"b/{number}").key(0) for number in numbers}
    entries = {number: entry for number, key in keys.items() if (entry := store.lookup(key)) is not None}
    return [number for number, entry in entries.items() if store.view(keys[number], entry) is not None]


def test_a_full_cache_gives_up_copies_and_nothing_else(tmp_path: Path) -> None:
    settings = StoreSettings(limit_bytes=LIMIT, keep_free_frac=0.0, eviction="epoch")
    with PageStore(tmp_path, settings) as store:
        own = [number for number in range(80) if put(store, number, PageLife.NORMAL)]
        copies = range(1000, 1300)
        assert not all(put(store, number, PageLife.COPY) for number in copies)  # until it is full
        kept = held(store, copies)
        assert len(kept) > 50
        assert held(store, range(80)) == own  # no copy has cost anything
        assert all(put(store, number, PageLife.NORMAL) for number in range(2000, 2080))
        assert held(store, range(80)) == own
        assert len(held(store, range(2000, 2080))) == 80
        assert len(held(store, copies)) < len(kept)


def test_what_is_to_be_kept_longer_is_no_copy_any_more(tmp_path: Path) -> None:
    with PageStore(tmp_path, StoreSettings(limit_bytes=64 << 20, keep_free_frac=0.0)) as store:
        assert put(store, 1, PageLife.COPY)
        assert put(store, 1, PageLife.PINNED)
        assert [page.name.path for page in store.pinned_pages()] == ["b/1"]
        name, version = ObjectName("s3||", "b/large"), Version(Strength.ETAG, "e", 5 * PAGE_BYTES)
        for index, life in enumerate((PageLife.COPY, PageLife.NORMAL, PageLife.PINNED, PageLife.COPY)):
            assert store.put(name, index, version, bytes(PAGE_BYTES), life=life, checked_at=time.time())
        assert sorted(page.page for page in store.pinned_pages()) == [0, 0, 1, 2, 3]
