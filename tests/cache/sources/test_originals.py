"""fsspec's registry is as it was after the cache, but for what the program has registered itself since."""

from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations

from stoker.cache.sources import fsspec_registry


class Own(MemoryFileSystem):
    pass


Own.__module__ = "stoker.test"  # as those that are routed


@pytest.fixture(autouse=True)
def stock() -> Any:
    known = dict(known_implementations)
    yield known
    fsspec_registry.restore()
    _registry.pop("webhdfs", None)
    assert known_implementations == known


def replace() -> Any:
    assert fsspec_registry.replace("webhdfs", "fsspec.implementations.memory.MemoryFileSystem", lambda: Own)
    return known_implementations["webhdfs"]


def test_a_class_that_is_not_imported_yet(stock: Any) -> None:
    replace()
    assert fsspec.get_filesystem_class("webhdfs") is MemoryFileSystem
    assert fsspec_registry.filesystem_class("webhdfs").__name__ == "WebHDFS"
    fsspec_registry.restore()
    assert known_implementations["webhdfs"] is stock["webhdfs"]


def test_what_fsspec_imported_by_our_path_goes_with_it() -> None:
    replace()
    fsspec.register_implementation("webhdfs", Own, clobber=True)  # as fsspec does with the first use
    fsspec_registry.restore()
    assert "webhdfs" not in _registry


def test_a_class_that_is_in_use() -> None:
    before = fsspec.get_filesystem_class("memory")
    assert fsspec_registry.replace("memory", "not.used", lambda: Own)
    assert fsspec.get_filesystem_class("memory") is Own
    assert fsspec_registry.filesystem_class("memory") is before
    fsspec_registry.restore()
    assert fsspec.get_filesystem_class("memory") is before


def test_what_the_program_registered_meanwhile_stays(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = replace(), {"class": "program.Own", "err": ""}
    known_implementations["webhdfs"] = theirs
    fsspec_registry.restore()
    assert known_implementations["webhdfs"] is theirs
    assert "fsspec.registry['webhdfs']" in caplog.text
    known_implementations["webhdfs"] = ours  # the program has gone, and so does ours at the next chance
