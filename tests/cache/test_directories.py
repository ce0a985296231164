"""Several directories used as one store: where pages go, and what a directory that cannot be used costs."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from stoker.cache.directories import Directories, Placed, open_directories
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.page_stores import close_page_stores
from stoker.cache.settings import CacheSettings
from stoker.cache.versions import Strength, Version
from stoker.core.errors import ConfigError

OBJECTS = 200
LIMIT = 64 << 20


@pytest.fixture
def opened(tmp_path: Path) -> Directories:
    found = open_directories([asked(tmp_path / "a"), asked(tmp_path / "b", 3 * LIMIT)])
    yield found  # type: ignore[misc]
    for each in found.directories:
        close_page_stores(each.path)


def asked(path: Path, limit_bytes: int = LIMIT) -> CacheSettings:
    return CacheSettings(directory=str(path), limit_bytes=limit_bytes)


def name_of(number: int) -> ObjectName:
    return ObjectName("s3||", f"bucket/{number}")


def version_of(number: int, size: int = 1000) -> Version:
    return Version(Strength.ETAG, f"etag {number}", size)


def put(directories: Directories, number: int, version: Version | None = None) -> bool:
    data = bytes([number % 251]) * 1000
    return directories.put(name_of(number), 0, version or version_of(number), data, checked_at=time.time())


def read(directories: Directories, number: int) -> bytes | None:
    key = name_of(number).key(0)
    entry = directories.lookup(key)
    buffer = bytearray(1000)
    if entry is None or not directories.read_into(key, entry, 0, memoryview(buffer)):
        return None
    assert directories.view(key, entry) == buffer
    return bytes(buffer)


def where(directories: Directories, number: int) -> str | None:
    entry: Placed | None = directories.lookup(name_of(number).key(0))
    return None if entry is None else entry.directory.path.name


def test_pages_are_dealt_by_size_and_found_wherever_they_are(opened: Directories) -> None:
    assert all(put(opened, number) for number in range(OBJECTS))
    assert all(read(opened, number) == bytes([number % 251]) * 1000 for number in range(OBJECTS))
    dealt = Counter(where(opened, number) for number in range(OBJECTS))
    assert 0.15 * OBJECTS < dealt["a"] < 0.35 * OBJECTS  # a quarter of the room
    assert [state["state"] for state in opened.states()] == ["ok", "ok"]
    opened.drop(name_of(3).key(0))
    assert read(opened, 3) is None


def test_the_pages_of_a_large_object_lie_together(opened: Directories) -> None:
    name, version = ObjectName("s3||", "bucket/large"), Version(Strength.ETAG, "e", 5 * PAGE_BYTES)
    for index in range(5):
        assert opened.put(name, index, version, bytes(PAGE_BYTES), checked_at=time.time())
    found = [opened.lookup(name.key(index)) for index in range(5)]
    assert len({entry.directory.path for entry in found if entry is not None}) == 1


def test_a_directory_more_moves_nothing_and_hides_no_newer_version(tmp_path: Path) -> None:
    alone = open_directories([asked(tmp_path / "a")])
    assert all(put(alone, number) for number in range(OBJECTS))
    both = open_directories([asked(tmp_path / "a"), asked(tmp_path / "b")])
    assert all(where(both, number) == "a" for number in range(OBJECTS))
    for number in range(OBJECTS):
        newer = version_of(1000 + number)
        assert put(both, number, newer)
        entry = both.lookup(name_of(number).key(0))
        assert entry is not None
        assert entry.version == newer.digest
    assert {where(both, number) for number in range(OBJECTS)} == {"a", "b"}
    for name in "ab":
        close_page_stores(tmp_path / name)


def test_what_cannot_be_used_is_named_and_costs_only_its_pages(tmp_path: Path) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "format").write_text("something else\n")
    (tmp_path / "file").write_text("no directory")
    paths = [asked(tmp_path / name) for name in ("damaged", "file", "good")]
    found = open_directories(paths)
    assert found.first == tmp_path / "good"
    assert all(put(found, number) for number in range(20))
    assert {where(found, number) for number in range(20)} == {"good"}
    damaged, file, good = found.states()
    assert "format" in damaged["state"]
    assert "exists" in file["state"].lower()
    assert good["state"] == "ok"
    with pytest.raises(ConfigError, match=r"damaged.*format"):
        open_directories(paths[:2])
    close_page_stores(tmp_path / "good")


def test_a_directory_that_vanishes_is_left_alone(opened: Directories, tmp_path: Path) -> None:
    gone = next(number for number in range(OBJECTS) if put(opened, number) and where(opened, number) == "b")
    shutil.rmtree(tmp_path / "b")
    for store in (each.store for each in opened.directories):
        assert store is not None
        store._parts.writers.close()  # the next page needs a new segment
    with opened.filling(b"k" * 16):
        pass
    kept = [number for number in range(1000, 1000 + OBJECTS) if put(opened, number)]
    assert len(kept) >= OBJECTS - 1  # one that found out
    assert {where(opened, number) for number in kept} == {"a"}
    assert opened.lookup(name_of(gone).key(0)) is None
    states = {Path(state["directory"]).name: state["state"] for state in opened.states()}
    assert states == {"a": "ok", "b": "No such file or directory"}
