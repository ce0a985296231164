"""Stores that were copied, and so have holes, to a disk in memory that is then full: errors and misses, no signals."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Strength, Version
from stoker.core.errors import CacheDirectoryError

pytestmark = pytest.mark.integration

SETTINGS = StoreSettings(limit_bytes=24 << 20, keep_free_frac=0.0)
SIZES = {"small": PAGE_BYTES, "large": 5 * PAGE_BYTES}


def version_of(path: str) -> Version:
    return Version(Strength.ETAG, "e", SIZES[path])


def fill(store: PageStore) -> None:
    """Pages of zeros: what a copy leaves out of them is most of the store."""
    for path, size in SIZES.items():
        for index in range(size // PAGE_BYTES):
            name = ObjectName("s3||", path)
            assert store.put(name, index, version_of(path), bytes(PAGE_BYTES), checked_at=1.0)


def num_right(store: PageStore) -> int:
    """Pages that are found, with their bytes."""
    found = 0
    for path, size in SIZES.items():
        for index in range(size // PAGE_BYTES):
            key = ObjectName("s3||", path).key(index)
            buffer = bytearray(b"x" * PAGE_BYTES)
            entry = store.lookup(key)
            if entry is not None and store.read_into(key, entry, 0, memoryview(buffer)):
                assert not any(buffer)
                found += 1
    return found


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Path]:
    """A store on a small disk in memory, copied there; skips where none may be mounted."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a filesystem")
    with PageStore(tmp_path / "pages", SETTINGS) as store:
        fill(store)
    subprocess.run(["cp", "-r", "--sparse=always", str(tmp_path / "pages"), str(disk)], check=True)
    yield disk / "pages"
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill_disk(directory: Path) -> None:
    with open(directory.parent / "other", "wb", buffering=0) as other, contextlib.suppress(OSError):
        while other.write(bytes(4096)):
            pass
    assert os.statvfs(directory).f_bavail == 0


def in_child(work: Callable[[], int]) -> int:
    """What a forked child returns; negative for a signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(work())
        except BaseException:
            os._exit(100)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_store_on_a_disk_that_is_full_is_refused(copied: Path) -> None:
    def work() -> int:
        try:
            PageStore(copied, SETTINGS)
        except CacheDirectoryError as error:
            return 50 if "No space left" in str(error) else 51
        return 0

    fill_disk(copied)
    assert in_child(work) == 50


def test_pages_for_which_there_is_no_room_any_more_are_misses(copied: Path) -> None:
    def work() -> int:
        with PageStore(copied, SETTINGS) as store:
            fill_disk(copied)
            found = num_right(store)
            name = ObjectName("s3||", "large")
            assert store.large(name, version_of("large")) is None
            assert store.stats().live.pages == 6
            return found

    assert in_child(work) == 0


def test_pages_that_were_found_once_stay(copied: Path) -> None:
    def work() -> int:
        with PageStore(copied, SETTINGS) as store:
            assert num_right(store) == 6
            fill_disk(copied)
            return num_right(store)

    assert in_child(work) == 6
