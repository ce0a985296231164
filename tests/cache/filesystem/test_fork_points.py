"""A child forked while another thread of its parent holds any one lock of the cache reads and writes all the same."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import CellType, FunctionType
from typing import Any
from weakref import WeakSet

import fsspec.asyn
import pytest

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Rule
from stoker.cache.sources import opening
from stoker.cache.sources.local import LocalSource
from stoker.cache.versions import Version
from stoker.core.processes import forking

pytestmark = pytest.mark.integration

SIZES = (10, 3000, 5 * PAGE_BYTES)
_LOCKS = (_thread.LockType, _thread.RLock)
_HOMES = ("stoker.cache", "stoker.core.processes.forking")
_CONTAINERS = (dict, list, tuple, set, OrderedDict, WeakSet)


class ListedSource(LocalSource):
    """Local files, whose folders can be listed as those of S3 can."""

    def versions(self, folder: str, most: int) -> dict[str, Version]:
        return {path: self.info(path).version for path in self.target.find(folder)[:most]}


def locks_of(root: Any, left: Collection[int]) -> Iterator[tuple[str, Any]]:
    """Locks that an object of the cache, and then its modules, lead to, each with its place in the object that has it.

    One of each place. Of the set of all that there are, `core.processes.forking` knows hundreds that earlier tests have
    ``left``.
    """
    seen: set[int] = set()
    places: set[str] = set()
    modules = [(name, vars(module)) for name, module in sys.modules.items() if name.startswith("stoker.cache.")]
    for start in [(type(root).__name__, root), *modules]:
        todo: list[tuple[str, Any]] = [start]
        while todo:
            place, found = todo.pop()
            if id(found) in seen:
                continue
            seen.add(id(found))
            if isinstance(found, _LOCKS):
                if place not in places:
                    yield place, found
                places.add(place)
                continue
            is_ours = _home(found).startswith(_HOMES)
            if is_ours or isinstance(found, _CONTAINERS):
                place = type(found).__name__ if type(found).__module__.startswith("stoker.cache") else place
                parts = found.items() if isinstance(found, dict) else enumerate(_parts(found, left))
                todo += [(f"{place}.{name} {type(part).__name__}", part) for name, part in parts]


def _home(found: Any) -> str:
    """The module that an object's class is of, or what `per_process` gave and its variables."""
    if isinstance(found, FunctionType) and found.__module__ == "stoker.core.processes.forking":
        return found.__module__
    return "stoker.core.processes.forking" if isinstance(found, CellType) else type(found).__module__


def _parts(found: Any, left: Collection[int]) -> list[Any]:
    if isinstance(found, WeakSet):
        return [part for part in found if id(part) not in left]
    return gc.get_referents(found)


def use(filesystem: StokerFileSystem, paths: list[str]) -> bool:
    """Reads what is cached and what is not, and writes."""
    right = [filesystem.cat(path) == Path(path).read_bytes() for path in paths]
    right += [filesystem.info(path)["size"] == os.path.getsize(path) for path in paths]
    with filesystem.open(paths[-1]) as file:
        right.append(file.read(PAGE_BYTES + 5) == Path(paths[-1]).read_bytes()[: PAGE_BYTES + 5])
    right.append(filesystem.cat_ranges(paths, [1] * len(paths), [3] * len(paths)) == [b"11"] * len(paths))
    written = f"{paths[0]}.{os.getpid()}"
    filesystem.pipe_file(written, b"written")
    right.append(filesystem.cat(written) == b"written")
    filesystem.pages.pin(filesystem.reader.name(written))
    return all(right)


def forked_while(lock: Any, work: Callable[[], bool]) -> int:
    """How a child ends that was forked while another thread held a lock."""
    taken, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            go.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    go.set()
    holder.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_every_lock(make: Callable[..., StokerFileSystem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import stoker.cache.models.folders  # noqa: F401 - their locks as well

    left = [id(lock) for lock in forking._locks]
    monkeypatch.setitem(opening._KINDS, "file", ListedSource)
    filesystem = make("file", rules=(Rule(max_age_s=0.0),))
    folder = tmp_path / "store"
    folder.mkdir()
    paths = [str(folder / str(number)) for number in range(len(SIZES))]
    for path, size in zip(paths, SIZES, strict=True):
        Path(path).write_bytes(b"1" * size)
    for _ in range(5):  # often enough for the folder to be listed
        assert use(filesystem, paths)
    # Not those of executors and events: a child makes its own.
    locks = [(way, lock) for way, lock in locks_of(filesystem, left) if "Executor" not in way and "Thread" not in way]
    assert len(locks) >= 8
    failed = [(way, code) for way, lock in locks if (code := forked_while(lock, lambda: use(filesystem, paths)))]
    assert failed == []


def test_the_lock_of_fsspecs_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsspec.asyn, "loop", [None])

    def build() -> bool:
        return opening.private_filesystem("http", {}).loop.is_running()

    assert forked_while(fsspec.asyn.get_lock(), build) == 0
