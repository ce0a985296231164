"""The limit holds, and what is removed is what may go."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.names import ObjectName
from stoker.cache.policies import PageLife, Policy, Rule
from stoker.cache.store.files.checksums import sums_of
from stoker.cache.store.layout import (
    StoreSettings,
    note_limit_bytes,
    note_policy,
    noted_limit_bytes,
    noted_policy,
)
from stoker.cache.store.page_store import PageStore
from stoker.cache.store.reclaim import space
from stoker.cache.store.reclaim.eviction import Victims, choose
from stoker.cache.store.writing import segment_writer
from stoker.cache.versions import Strength, Version

LIMIT = 4 << 20
PAGE = 20_000


def settings(policy: Policy = "lru", **more: object) -> StoreSettings:
    return StoreSettings(limit_bytes=LIMIT, keep_free_frac=0.0, eviction=policy, **more)  # pyright: ignore


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def name_of(i: int) -> ObjectName:
    return ObjectName("s3||", f"bucket/{i}")


def page_of(i: int) -> bytes:
    return random.Random(i).randbytes(PAGE)


def put(store: PageStore, i: int, *, rule: int = 0, life: PageLife = PageLife.NORMAL) -> bool:
    version = Version(Strength.ETAG, str(i), PAGE)
    return store.put(name_of(i), 0, version, page_of(i), rule=rule, life=life, checked_at=1.0)


def get(store: PageStore, i: int) -> bool:
    """Whether a page is there; its bytes are right if it is."""
    key = name_of(i).key(0)
    entry = store.lookup(key)
    buffer = memoryview(bytearray(PAGE))
    if entry is None or not store.read_into(key, entry, 0, buffer):
        return False
    assert bytes(buffer) == page_of(i)
    return True


@pytest.mark.parametrize("policy", ["lru", "sieve", "s3fifo"])
def test_policies_for_serving_admit_everything_within_the_limit(tmp_path: Path, policy: Policy) -> None:
    with PageStore(tmp_path, settings(policy)) as store:
        for i in range(600):
            assert put(store, i)
            assert get(store, i)
            if i % 50 == 0:
                assert disk_bytes(tmp_path) <= LIMIT
        kept = sum(get(store, i) for i in range(600))
        assert 0.5 * LIMIT / PAGE < kept <= LIMIT / PAGE


def test_a_full_cache_keeps_what_is_read_every_epoch(tmp_path: Path) -> None:
    rng = random.Random(1)
    data = range(400)
    with PageStore(tmp_path, settings("epoch")) as store:
        ratios: list[float] = []
        for _ in range(4):
            hits = 0
            for i in rng.sample(data, len(data)):
                hit = get(store, i)
                hits += hit
                if not hit:
                    put(store, i)
            ratios.append(hits / len(data))
        fits = LIMIT // PAGE / len(data)
        assert min(ratios[1:]) >= 0.85 * fits
        assert disk_bytes(tmp_path) <= LIMIT


def test_objects_that_change_do_not_fill_a_cache_with_what_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch some objects have changed since: what was cached of them is dropped, what they are now has room.

    Which files go depends on when room is asked for, and epochs differ widely: by a clock that counts reads they are
    the same ones on any machine.
    """
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    choose = random.Random(3)
    data = list(range(250))
    changed = dict.fromkeys(data, 0)
    with PageStore(tmp_path, settings("epoch")) as store:
        ratios: list[float] = []
        for epoch in range(16):
            hits = 0
            for i in choose.sample(data, len(data)):
                if epoch >= 2 and choose.random() < 0.15:
                    store.drop(name_of(i + 1000 * changed[i]).key(0))
                    changed[i] += 1
                clock += 0.001
                hit = get(store, i + 1000 * changed[i])
                hits += hit
                if not hit:
                    put(store, i + 1000 * changed[i])
            ratios.append(hits / len(data))
        assert ratios[1] > 0.7
        assert sum(ratios[4:]) / 12 > 0.4  # 0.14 and falling where such files stay
        assert disk_bytes(tmp_path) <= LIMIT


def test_a_page_that_will_be_refused_is_not_even_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    summed: list[int] = []
    monkeypatch.setattr(segment_writer, "sums_of", lambda view: summed.append(len(view)) or sums_of(view))
    with PageStore(tmp_path, settings("epoch")) as store:
        i = 0
        while put(store, i):
            i += 1
        refused = store.stats().refused
        summed.clear()
        assert not any(put(store, i + more) for more in range(10))
        assert not summed
        assert store.stats().refused == refused + 10
        assert store.evict().pages
        assert put(store, i)  # a file went
        while put(store, i):
            i += 1
        clock += 60
        assert not put(store, i)
        assert len(summed) > 1  # the room was asked again, after a while


def test_a_thread_that_is_kept_waiting_while_it_asks_asks_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts what asking takes of the processor: the rest of an epoch may be over by twenty times a wait."""
    asked: list[int] = []

    def stalling(*args: Any, **more: Any) -> Victims:
        asked.append(1)
        time.sleep(0.05)
        return choose(*args, **more)

    with PageStore(tmp_path, settings("epoch")) as store:
        i = 0
        while put(store, i):
            i += 1
        monkeypatch.setattr(space, "choose", stalling)
        deadline = time.monotonic() + 0.5
        while len(asked) < 2 and time.monotonic() < deadline:
            assert not put(store, i)
        assert len(asked) == 2


def test_less_than_what_was_refused_may_have_room(tmp_path: Path) -> None:
    size = 5 * PAGE
    version = Version(Strength.ETAG, "large", size)
    with PageStore(tmp_path, settings("epoch")) as store:
        i = 0
        while store.put(name_of(i), 0, version, bytes(size), checked_at=1.0):
            i += 1
        small = i
        while put(store, small):
            small += 1
        assert small > i


def test_pages_go_after_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = (Rule(ttl_s=100.0), Rule())
    with PageStore(tmp_path, settings(rules=rules)) as store:
        assert put(store, 1, rule=0, life=PageLife.TIMED)
        assert put(store, 2, rule=1)
        assert get(store, 1)
        now = time.time() + 101
        monkeypatch.setattr(time, "time", lambda: now)
        assert not get(store, 1)
        assert get(store, 2)


def test_a_rule_takes_no_more_than_its_quota(tmp_path: Path) -> None:
    rules = (Rule(quota_bytes=1 << 20), Rule())
    with PageStore(tmp_path, settings(rules=rules)) as store:
        for i in range(30):
            assert put(store, i, rule=1)
        for i in range(100, 200):
            assert put(store, i, rule=0)
        assert sum(get(store, i) for i in range(30)) == 30
        assert 10 <= sum(get(store, i) for i in range(100, 200)) <= (1 << 20) / PAGE


def test_pinned_pages_stay_and_make_others_go(tmp_path: Path) -> None:
    with PageStore(tmp_path, settings("epoch")) as store:
        for i in range(400):
            put(store, i)
        for i in range(1000, 1060):
            assert put(store, i, life=PageLife.PINNED)
        for i in range(2000, 2400):
            put(store, i)
        assert all(get(store, i) for i in range(1000, 1060))


def test_bytes_behind_a_view_count_until_it_goes(tmp_path: Path) -> None:
    with PageStore(tmp_path, settings()) as store:
        put(store, 0)
        entry = store.lookup(name_of(0).key(0))
        assert entry is not None
        view = store.view(name_of(0).key(0), entry)
        assert view is not None
        for i in range(1, 600):
            put(store, i)
        assert not get(store, 0)
        assert bytes(view) == page_of(0)
        assert disk_bytes(tmp_path) <= LIMIT
        assert store.layout.segment(entry.segment).exists()
        del view
        for i in range(600, 700):
            put(store, i)
        assert not store.layout.segment(entry.segment).exists()


def test_the_disk_is_kept_as_free_as_asked(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    more_than_is_free = min(0.999, disk.f_bavail / disk.f_blocks + 0.001)
    with PageStore(tmp_path, StoreSettings(limit_bytes=LIMIT, keep_free_frac=more_than_is_free)) as store:
        assert not put(store, 0)
        assert not get(store, 0)


def test_a_limit_that_was_noted_holds_for_who_asks_for_none(tmp_path: Path) -> None:
    note_limit_bytes(tmp_path / "pages", 8 << 20)
    with PageStore(tmp_path / "pages") as store:
        assert store.limit_bytes == 8 << 20
    with PageStore(tmp_path / "pages", settings()) as store:
        assert store.limit_bytes == LIMIT
    for unusable in ("0", "many", ""):
        (tmp_path / "pages" / "size").write_text(unusable)
        assert noted_limit_bytes(tmp_path / "pages") is None


@pytest.mark.parametrize(("policy", "admits"), [("epoch", False), ("lru", True), ("sieve", True), ("s3fifo", True)])
def test_a_policy_that_was_noted_holds_for_who_asks_for_none(tmp_path: Path, policy: Policy, admits: bool) -> None:
    note_policy(tmp_path, "lru")
    note_policy(tmp_path, policy)
    assert noted_policy(tmp_path) == policy
    with PageStore(tmp_path, StoreSettings(limit_bytes=LIMIT, keep_free_frac=0.0)) as store:
        for i in range(600):
            put(store, i)
            get(store, i)
        assert get(store, 599) is admits
    (tmp_path / "eviction").write_text("nonsense")
    assert noted_policy(tmp_path) is None
