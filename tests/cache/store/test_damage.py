"""Damaged files and full disks: misses, never wrong bytes, never an exception."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cache.names import DESCRIPTION, PAGE_BYTES
from stoker.cache.store import layout
from stoker.cache.store.layout import Layout, StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import CacheDirectoryError, ConfigError
from tests.cache.store import storing


def flip(path: Path, at: int, bit: int) -> None:
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), at)


def test_every_flipped_bit_of_a_record_is_a_miss_or_harmless(tmp_path: Path) -> None:
    i = 100
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.put(store, i, 3)
        entry = store.lookup(storing.name_of(i).key(0))
        assert entry is not None
    size = 512 + storing.size_of(i)
    rng = random.Random(1)
    places = [*range(0, 3000, 7), *(rng.randrange(8 * size) for _ in range(100))]
    found = 0
    with PageStore(tmp_path, storing.settings()) as store:
        for place in places:
            flip(store.layout.segment(entry.segment), entry.offset + place // 8, place % 8)
            found += storing.check(store, i) is not None
            storing.put(store, i, 3)
            entry = store.lookup(storing.name_of(i).key(0))
            assert entry is not None
            assert storing.check(store, i) == 3
    # What lies between the texts of the header and the next multiple of 64 is checked, what follows the page is not.
    assert found <= len(places) // 20


def test_a_damaged_index_gives_right_bytes_or_none(tmp_path: Path) -> None:
    rng = random.Random(2)
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(3, 200):
            storing.put(store, i, i % 8)
        for _ in range(30):
            with open(tmp_path / "index", "r+b") as file:
                size = os.fstat(file.fileno()).st_size
                data_at = rng.choice([0, 4096, 4096 + (16 << 18), size - (1 << 20)])
                for _ in range(40):
                    at = data_at + rng.randrange(4096)
                    old = os.pread(file.fileno(), 1, at)
                    os.pwrite(file.fileno(), bytes([old[0] ^ 1 << rng.randrange(8)]), at)
            for i in range(3, 200):
                assert storing.check(store, i) in (None, i % 8)
    # Opened again, a header that cannot be is the begin of a new index.
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(3, 30):
            storing.put(store, i, i % 8)
            assert storing.check(store, i) in (None, i % 8)


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(4096)])
def test_a_short_or_foreign_index_is_begun_anew(tmp_path: Path, content: bytes) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        storing.put(store, 100, 1)
    (tmp_path / "index").write_bytes(content)
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.check(store, 100) in (None, 1)
        assert storing.put(store, 101, 1)
        assert storing.check(store, 101) == 1


def test_segments_that_someone_deleted_are_misses(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in range(100, 110):
            storing.put(store, i, 1)
        assert store.describe(storing.name_of(100), storing.version_of(100, 1), b"{}", checked_at=1.0)
    for path in (tmp_path / "segments").iterdir():
        path.unlink()
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.check(store, 100) is None
        assert store.description(storing.name_of(100)) is None
        assert store.lookup(storing.name_of(100).key(DESCRIPTION)) is None
        assert storing.put(store, 100, 2)
        assert storing.check(store, 100) == 2


def test_files_of_a_lost_table_are_removed(tmp_path: Path) -> None:
    with PageStore(tmp_path, storing.settings()) as store:
        for i in [0, *range(100, 110)]:
            storing.put(store, i, 1)
    (tmp_path / "table").unlink()
    with PageStore(tmp_path, storing.settings()) as store:
        assert not store.layout.page_files()
        assert [storing.check(store, i) for i in range(100, 110)] == [None] * 10
        assert storing.put(store, 100, 2)
        assert storing.check(store, 100) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 12 MiB, where the test may mount one."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("may not mount a filesystem")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def fill_and_check(store: PageStore) -> int:
    refused = sum(not storing.put(store, i, 1) for i in range(storing.OBJECTS))
    assert storing.check_all(store) > 20
    return refused


@pytest.mark.integration
def test_a_full_disk_refuses_pages_and_reads_go_on(small_disk: Path) -> None:
    with PageStore(small_disk / "pages", storing.settings("epoch")) as store:
        assert fill_and_check(store) > 10
        held = storing.held_bytes(store)
        # Someone else takes the rest, to the last byte.
        with open(small_disk / "other", "wb", buffering=0) as other, contextlib.suppress(OSError):
            while other.write(bytes(1 << 16)):
                pass
        assert os.statvfs(small_disk).f_bavail == 0
        # Where the policy gives a file up, pages of other sizes take its place: all but what is too little for a page.
        # It may do so at the last pages of a pass, so that the next ones are.
        passes = (fill_and_check(store) and storing.held_bytes(store) for _ in range(5))
        assert any(now >= held - PAGE_BYTES for now in passes)
        kept = storing.check_all(store)
        (small_disk / "other").unlink()
    with PageStore(small_disk / "pages", storing.settings("lru")) as store:
        assert storing.check_all(store) >= kept
        assert storing.put(store, 399, 2)
        assert storing.check(store, 399) == 2


@pytest.mark.integration
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    """Every write fails from some moment on (EFBIG here); what is there is read."""
    with PageStore(tmp_path, storing.settings("lru")) as store:
        for i in range(100, 120):
            assert storing.put(store, i, 1)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        try:
            refused = [not storing.put(store, i, 1) for i in range(120, 150)]
            assert all(refused)
            assert [storing.check(store, i) for i in range(100, 120)] == [1] * 20
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert all(storing.put(store, i, 1) for i in range(120, 150))


def test_a_directory_of_another_format_is_refused(tmp_path: Path) -> None:
    Layout(tmp_path).prepare()
    (tmp_path / "format").write_text("stoker pages 99\n")
    with pytest.raises(CacheDirectoryError, match="STOKER_CACHE_DIR"):
        PageStore(tmp_path)


def test_the_directory_is_private(tmp_path: Path) -> None:
    with PageStore(tmp_path / "a" / "b", storing.settings()):
        assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_the_default_directory_is_not_on_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert layout.default_directory() == tmp_path / "stoker" / "pages"
    monkeypatch.setattr(layout, "filesystem_type", lambda path: "nfs4")
    with pytest.raises(CacheDirectoryError, match="nfs4"):
        layout.default_directory()
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "named"))
    assert layout.default_directory() == tmp_path / "named"


def test_types_of_filesystems(tmp_path: Path) -> None:
    assert layout.filesystem_type(Path("/proc/self")) == "proc"
    assert layout.filesystem_type(tmp_path / "missing" / "deeper") == layout.filesystem_type(tmp_path) != ""
    assert layout.is_network("fuse.sshfs")
    assert not layout.is_network("ext4")


@pytest.mark.parametrize(
    "wrong",
    [{"limit_bytes": 5}, {"keep_free_frac": 1.0}, {"eviction": "fifo"}, {"verify": "never"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, ConfigError), match="must be"):
        StoreSettings(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_stopped_clock_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.put(store, 100, 5)
        assert storing.check(store, 100) == 5


@pytest.mark.parametrize("i", [100, 0])
def test_an_index_that_points_to_another_page_is_a_miss(tmp_path: Path, i: int) -> None:
    """The record, not the index, says what is read: key, version and length are compared there."""
    other = i + 1
    with PageStore(tmp_path, storing.settings()) as store:
        assert storing.put(store, i, 1)
        assert storing.put(store, other, 1)
        key, other_key = storing.name_of(i).key(0), storing.name_of(other).key(0)
        entry, other_entry = store.lookup(key), store.lookup(other_key)
        assert entry is not None
        assert other_entry is not None
        buffer = memoryview(bytearray(10))
        for wrong in (
            entry._replace(segment=other_entry.segment, offset=other_entry.offset, length=other_entry.length),
            entry._replace(version=entry.version ^ 1),
            entry._replace(length=entry.length - 1),
            entry._replace(offset=entry.offset + 64),
            entry._replace(segment=10**6),
        ):
            assert not store.read_into(key, wrong, 0, buffer)
            assert store.view(key, wrong) is None
        assert not store.read_into(key, entry, entry.length - 5, buffer)
        assert storing.check(store, i) == 1
        assert storing.check(store, other) == 1
