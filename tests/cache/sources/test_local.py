"""Local files, the process's own memory, and filesystems of which nothing special is known."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.sources.generic import GenericSource
from stoker.cache.sources.opening import SourceHolder, SourceSpec, open_source
from stoker.cache.sources.source import ObjectInfo, version_of
from stoker.cache.versions import Strength
from stoker.core.errors import SourceChangedError, SourceReadError


def test_a_local_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"0123456789")
    source = open_source(SourceSpec("file"))
    info, data = source.first(str(path), 4)
    assert (info.version.size, data) == (10, b"0123")
    assert source.read(str(path), 2, 5, info.version) == b"234"


def test_a_local_file_of_the_same_size_and_time_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    source = open_source(SourceSpec("file"))
    version = source.info(str(path)).version
    source.read(str(path), 0, 3, version)
    stamps = path.stat()
    path.write_bytes(b"new")
    os.utime(path, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    with pytest.raises(SourceChangedError):
        source.read(str(path), 0, 3, version)


def test_writes_within_a_step_of_the_clock_are_told_apart(tmp_path: Path) -> None:
    """A file that was just written is read once its stamps can no longer be those of the next write."""
    path = tmp_path / "data"
    source = open_source(SourceSpec("file"))
    seen: dict[Any, bytes] = {}
    for number in range(20):
        path.write_bytes(b"%03d" % number)
        info, data = source.first(str(path), 3)
        assert seen.setdefault(info.version, data) == data == b"%03d" % number


def test_a_local_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"old")
    source = open_source(SourceSpec("file"))
    version = source.info(str(path)).version
    path.unlink()
    with pytest.raises(SourceChangedError, match="is gone"):
        source.read(str(path), 0, 3, version)


class Dated(MemoryFileSystem):
    """Says when objects were changed."""

    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        return {**super().info(path, **kwargs), "mtime": self.modified(path).timestamp()}


class Changing(Dated):
    """Overwrites the object while it is read, with one of the same size."""

    data = b"old"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        found = super().cat_file(path, start, end, **kwargs)
        self.pipe_file(path, self.data)
        return found


def test_any_other_filesystem_is_asked_before_and_after() -> None:
    target = Changing(global_store=False)
    source = GenericSource(target, "test")
    MemoryFileSystem.pipe_file(target, "/a", b"old")
    version = source.info("/a").version
    with pytest.raises(SourceChangedError):
        source.read("/a", 0, 3, version)


class Short(Dated):
    """Reads less than it was asked for."""

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        return super().cat_file(path, start, end, **kwargs)[:-1]


def test_too_few_bytes_are_an_error() -> None:
    target = Short(global_store=False)
    source = GenericSource(target, "test")
    target.pipe_file("/a", b"data")
    with pytest.raises(SourceReadError):
        source.read("/a", 0, 3, source.info("/a").version)


def test_a_target_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = fsspec.filesystem("memory")
    assert open_source(SourceSpec("memory")).target is not shared


def test_a_forked_child_builds_its_own() -> None:
    holder = SourceHolder(SourceSpec("memory"))
    mine = holder.get()
    assert holder.get() is mine
    pid = os.fork()
    if pid == 0:
        os._exit(0 if holder.get() is not mine and holder.get().namespace != mine.namespace else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_leaves_the_finalizers_of_its_parents_filesystems_alone() -> None:
    holder = SourceHolder(SourceSpec("memory"))
    target = weakref.ref(holder.get().target)
    pid = os.fork()
    if pid == 0:
        holder.get()
        del holder
        gc.collect()
        os._exit(0 if target() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(("details", "strength"), [
    ({"generation": "5", "etag": "e"}, Strength.VERSIONED), ({"ETag": '"e"'}, Strength.ETAG),
    ({"etag": "0x8D"}, Strength.ETAG), ({"blob_id": "ab"}, Strength.ETAG), ({"ETag": 'W/"e"'}, Strength.NONE),
    ({"ETag": 'W/"e"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, Strength.DATED),
    ({"mtime": 1.7e9}, Strength.DATED), ({"modificationTime": 1_700_000_000_000}, Strength.DATED),
    ({"mtime": 1.8e9 - 1}, Strength.NONE), ({"mtime": 1.9e9}, Strength.NONE), ({"created": 1.7e9}, Strength.NONE),
    ({"mtime": "yesterday"}, Strength.NONE), ({}, Strength.NONE),
])  # fmt: skip
def test_what_a_store_says_decides_how_sure_a_version_is(details: dict[str, Any], strength: Strength) -> None:
    version = version_of({"type": "file", "size": 3, **details}, 1.8e9)
    assert (version.strength, version.size) == (strength, 3)


def test_a_directory_and_an_object_of_unknown_length_have_no_version() -> None:
    for details in ({"type": "directory", "size": 0}, {"type": "file", "size": None, "ETag": "e"}):
        assert version_of(details, 1.8e9).strength is Strength.NONE
        assert not ObjectInfo(version_of(details, 1.8e9), details).is_file
