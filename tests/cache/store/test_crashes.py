"""kill -9 at every system call that changes the store, before it, after it, and in the middle of a write."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.names import ObjectName, pages_of
from stoker.cache.store.page_store import PageStore
from tests.cache.store import storing

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

LIMIT = 20 << 20
PAGE = 4096
CALLS = ("open", "pwrite", "pwritev", "posix_fallocate", "ftruncate", "unlink", "replace", "link", "mkdir")


def change(directory: Path) -> None:
    """Changes of all kinds, always the same: the store is full before they end."""
    with PageStore(directory, storing.settings("lru", LIMIT)) as store:
        for i in range(100, 160):
            storing.put(store, i, 1)
        for index in pages_of(0, storing.size_of(0)):
            storing.put(store, 0, 1, index)
        storing.put(store, 0, 2)  # another version of a large object
        for i in range(100, 130):
            storing.put(store, i, 2)
        store.pin(storing.name_of(131))
        store.drop(storing.name_of(130).key(0))
        for i in range(160, 330):
            storing.put(store, i, 1)
        store.unpin(storing.name_of(131))
        store.compact()
        store.evict(ObjectName("s3||", "bucket/15"))


class Killing:
    """Counts the calls of this process that change files, and ends it at one of them.

    Args:
        at: number of the call; 0 for none.
        how: ``before`` it, ``after`` it, or in the ``middle`` of what it writes.
    """

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.count = at, how, 0

    def patch(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count != self.at:
                return call(*args, **kwargs)
            if self.how == "after":
                call(*args, **kwargs)
            elif self.how == "middle" and name in ("pwrite", "pwritev"):
                content = args[1] if name == "pwrite" else b"".join(args[1])
                # The kernel copies page by page, and looks for a signal in between.
                half = (args[2] + len(content) // 2) // PAGE * PAGE - args[2]
                os.lseek(args[0], args[2], os.SEEK_SET)
                os.write(args[0], content[: max(0, half)])
            os.kill(os.getpid(), signal.SIGKILL)

        return called


def in_child(directory: Path, at: int, how: str) -> int:
    """Makes the changes in a child; how many calls it made, 0 if it was killed."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        killing = Killing(at, how)
        killing.patch()
        change(directory)
        os.write(tell, killing.count.to_bytes(4, "little"))
        os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with os.fdopen(ready, "rb") as pipe:
        return int.from_bytes(pipe.read(), "little")


@pytest.mark.parametrize("how", ["before", "middle", "after"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "used"])
def test_every_call(tmp_path: Path, how: str, is_new: bool) -> None:
    """Each time in a new directory, or again and again in one that bears all the crashes before."""
    num_calls = in_child(tmp_path / "dry", 0, how)
    assert num_calls > 500
    choose = random.Random(f"{how}{is_new}")
    # The first calls make the store.
    points = [*range(1, 26, 5), *choose.sample(range(26, num_calls), 5)]
    kept: list[int] = []
    for point in points:
        directory = tmp_path / (str(point) if is_new else "one")
        in_child(directory, point, how)
        begun = time.monotonic()
        with PageStore(directory, storing.settings("lru", LIMIT)) as store:
            kept.append(storing.check_all(store))
            assert storing.insist(store, 399, 3)
            assert storing.check(store, 399) == 3
            assert store.verify().damaged.pages == 0
        assert time.monotonic() - begun < 5.0
        assert storing.disk_bytes(directory) <= LIMIT
        assert len([path for path in directory.iterdir() if path.suffix]) <= 2  # what was written aside
    assert max(kept) > 50
