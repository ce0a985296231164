"""Listing, pinning, evicting by name, verifying, and what survives the loss of the index."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.cache.names import ObjectName
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from tests.cache.store import storing

SMALL = range(100, 140)
PREFIX = ObjectName("s3||", "bucket/")


def fill(store: PageStore) -> None:
    for i in [0, *SMALL]:
        for index in range(5) if i == 0 else [0]:
            assert storing.put(store, i, 1, index)


def prefix_of(i: int) -> ObjectName:
    return ObjectName("s3||", f"bucket/{i}")


def test_names(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        fill(store)
        held = list(store.names(PREFIX))
        assert {(h.name.path, h.page) for h in held} == {
            *((f"bucket/{i}", 0) for i in SMALL),
            *(("bucket/0", index) for index in range(5)),
        }
        assert all(h.version == storing.version_of(int(h.name.path[7:]), 1) for h in held)
        assert len(list(store.names(prefix_of(12)))) == 10
        assert not list(store.names(ObjectName("gs||", "bucket/")))
        storing.put(store, 100, 2)
        assert [h.version.token for h in store.names(prefix_of(100))] == ["2"]
        stats = store.stats()
        assert stats.live.pages == 45
        assert stats.live.num_bytes == sum(h.entry.length for h in store.names())
        assert (stats.puts, stats.large, stats.refused) == (46, 1, 0)
        assert stats.used_bytes <= storing.LIMIT


def test_names_of_full_segments(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(100, 180):
            storing.put(store, i, 1)
        assert len(list((tmp_path / "segments").iterdir())) > 1
        assert {h.name for h in store.names()} == {storing.name_of(i) for i in range(100, 180)}


def test_evicting_by_name(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        fill(store)
        assert store.evict(prefix_of(0)).pages == 5
        assert [storing.check(store, 0, index) for index in range(5)] == [None] * 5
        assert not list((tmp_path / "large").iterdir())
        assert store.evict(prefix_of(11)).pages == 10
        assert [i for i in SMALL if storing.check(store, i)] == [i for i in SMALL if not 110 <= i < 120]
        assert store.evict().pages == 30
        assert not list((tmp_path / "segments").iterdir())
        fill(store)
        assert storing.check_all(store) == 45


def test_pins_hold_until_they_are_taken_away(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store, PageStore(tmp_path, storing.settings()) as other:
        # What a process appends to now is not evicted by another one.
        fill(other)
        assert store.pin(prefix_of(11)).pages == 10
        assert store.pin(prefix_of(0)).pages == 5
        assert set(other.pinned()) == {prefix_of(11), prefix_of(0)}
        storing.put(other, 11, 1)
        for i in range(150, 400):
            storing.put(other, i, 1)
            storing.check(store, 11)  # whoever reads lets go of what was evicted
        assert [i for i in SMALL if storing.check(store, i)] == list(range(110, 120))
        assert [storing.check(store, 0, index) for index in range(5)] == [1] * 5
        assert storing.check(store, 11) == 1
        assert store.stats().pinned.pages == 16
        assert store.unpin(prefix_of(11)).pages == 11
        assert store.unpin(prefix_of(0)).pages == 5
        assert other.pinned() == ()
        for round_ in range(2, 4):
            for i in range(150, 400):
                while not storing.put(other, i, round_):
                    storing.check(store, i)
        assert not any(storing.check(store, i) for i in [11, *SMALL])
        assert storing.check(store, 0, 0) is None
        assert storing.disk_bytes(tmp_path) <= storing.LIMIT


def test_unpinning_part_of_a_segment(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        fill(store)
        store.pin(prefix_of(11))
        store.pin(prefix_of(12))
        assert store.unpin(prefix_of(11)).pages == 10
        assert store.stats().pinned.pages == 10
        assert storing.check_all(store) == 45


def test_verifying_drops_what_is_damaged(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        fill(store)
        entry = store.lookup(storing.name_of(105).key(0))
        assert entry is not None
        with open(store.layout.segment(entry.segment), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"damage", entry.offset + 1000)
        report = store.verify()
        assert (report.intact.pages, report.damaged.pages) == (44, 1)
        assert store.lookup(storing.name_of(105).key(0)) is None
        assert store.verify().damaged.pages == 0
        assert store.stats().damaged == 1


def test_segments_with_little_left_are_rewritten(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(100, 180):
            storing.put(store, i, 1)
        before = len(list((tmp_path / "segments").iterdir()))
        for i in range(100, 180):
            if i % 10:
                store.drop(storing.name_of(i).key(0))
        assert store.compact() >= 1
        assert len(list((tmp_path / "segments").iterdir())) < before
        assert [i for i in range(100, 180) if storing.check(store, i)] == list(range(100, 180, 10))


def test_an_index_that_is_lost_is_made_again(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        fill(store)
        for i in SMALL:
            storing.put(store, i, 2)
    (tmp_path / "index").unlink()
    with PageStore(tmp_path, storing.settings()) as store:
        assert [storing.check(store, i) for i in SMALL] == [2] * len(SMALL)
        assert [storing.check(store, 0, index) for index in range(5)] == [1] * 5
        assert store.large(storing.name_of(0), storing.version_of(0, 1)) is not None
        assert store.stats().live.pages == 45


def test_first_touch(tmp_path: Path) -> None:
    settings = StoreSettings(limit_bytes=storing.LIMIT, keep_free_frac=0.0, verify="first-touch")
    with PageStore(tmp_path, settings) as store:
        fill(store)
        entry = store.lookup(storing.name_of(105).key(0))
        assert entry is not None
        with open(store.layout.segment(entry.segment), "r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"damage", entry.offset + 1000)
        assert storing.check(store, 105) is None
        assert storing.check_all(store) == 44
        assert storing.check_all(store) == 44
