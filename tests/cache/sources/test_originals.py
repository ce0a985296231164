"""fsspec's registry is as it was after the cache, but for what the program has registered itself since."""

from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry, known_implementations

from stoker.cache.sources import originals


class Own(MemoryFileSystem):
    pass


Own.__module__ = "stoker.test"  # as those that are routed


@pytest.fixture(autouse=True)
def stock() -> Any:
    known = dict(known_implementations)
    yield known
    originals.restore()
    _registry.pop("webhdfs", None)
    assert known_implementations == known


def replace() -> Any:
    assert originals.replace("webhdfs", "fsspec.implementations.memory.MemoryFileSystem", lambda: Own)
    return known_implementations["webhdfs"]


def test_a_class_that_is_not_imported_yet(stock: Any) -> None:
    replace()
    assert fsspec.get_filesystem_class("webhdfs") is MemoryFileSystem
    assert originals.filesystem_class("webhdfs").__name__ == "WebHDFS"
    originals.restore()
    assert known_implementations["webhdfs"] is stock["webhdfs"]


def test_what_fsspec_imported_by_our_path_goes_with_it() -> None:
    replace()
    fsspec.register_implementation("webhdfs", Own, clobber=True)  # as fsspec does with the first use
    originals.restore()
    assert "webhdfs" not in _registry


def test_a_class_that_is_in_use() -> None:
    before = fsspec.get_filesystem_class("memory")
    assert originals.replace("memory", "not.used", lambda: Own)
    assert fsspec.get_filesystem_class("memory") is Own
    assert originals.filesystem_class("memory") is before
    originals.restore()
    assert fsspec.get_filesystem_class("memory") is before


def test_what_the_program_registered_meanwhile_stays(caplog: pytest.LogCaptureFixture) -> None:
    ours, theirs = replace(), {"class": "program.Own", "err": ""}
    known_implementations["webhdfs"] = theirs
    originals.restore()
    assert known_implementations["webhdfs"] is theirs
    assert "fsspec.registry['webhdfs']" in caplog.text
    known_implementations["webhdfs"] = ours  # the program has gone, and so does ours at the next chance
