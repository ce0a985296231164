"""Eight processes on one cache that is too small for what they read: every byte is right, and the limit holds."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Policy, Rule
from tests.cache.store.storing import disk_bytes

NUM_READS = int(os.environ.get("STOKER_TEST_READS", "130"))
"""Of each process; with 20000 the test takes minutes."""
pytestmark = [pytest.mark.integration, pytest.mark.timeout(120 + NUM_READS // 50)]

PROCESSES = 8
LIMIT_BYTES = 24 << 20
SIZES = [*[30_000] * 300, *[400_000] * 60, *[PAGE_BYTES + 99] * 10, *[5 * PAGE_BYTES + 7] * 4]
"""Of objects: three times the limit, in segments and in files of their own."""


def content(number: int, start: int = 0, end: int | None = None) -> bytes:
    """Bytes of an object."""
    word = number.to_bytes(4, "little")
    first, last, _ = slice(start, end).indices(SIZES[number])
    return (word * ((last - first) // 4 + 2))[first % 4 :][: max(0, last - first)]


def make_objects(folder: Path) -> None:
    folder.mkdir()
    for number in range(len(SIZES)):
        (folder / str(number)).write_bytes(content(number))


def read(filesystem: StokerFileSystem, folder: Path, seed: int, num_reads: int) -> int:
    """Reads in every way: a new epoch of all objects again and again, and jumps between.

    Returns:
        Reads that gave other bytes than the object's.
    """
    choose = random.Random(seed)
    wrong = 0
    order: list[int] = []
    for _ in range(num_reads):
        if not order:
            order = choose.sample(range(len(SIZES)), len(SIZES))
        number = order.pop() if choose.random() < 0.8 else choose.randrange(len(SIZES))
        path, start = str(folder / str(number)), choose.randrange(SIZES[number])
        kind = choose.random()
        if kind < 0.5:
            wrong += filesystem.cat_file(path) != content(number)
        elif kind < 0.8:
            wrong += filesystem.cat_file(path, start, start + 5000) != content(number, start, start + 5000)
        else:
            with filesystem.open(path) as file:
                file.seek(start)
                wrong += file.read(200_000) != content(number, start, start + 200_000)
    return wrong


def run(filesystem: StokerFileSystem, folder: Path, num_reads: int) -> int:
    """All processes at once; the most bytes that the cache took on disk meanwhile."""
    children: list[int] = []
    for seed in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            signal.alarm(60 + num_reads)
            code = 2
            try:
                code = 1 if read(filesystem, folder, seed, num_reads) else 0
            finally:
                os._exit(code)
        children.append(pid)
    most, choose, ended = 0, random.Random(PROCESSES), dict[int, int]()
    while len(ended) < PROCESSES:
        most = max(most, disk_bytes(filesystem.pages.layout.root))
        filesystem.pages.evict(filesystem.reader.name(str(folder / str(choose.randrange(len(SIZES))))))
        time.sleep(0.01)
        for pid in children:
            if pid not in ended and (found := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(found[1])
    assert list(ended.values()) == [0] * PROCESSES
    return max(most, disk_bytes(filesystem.pages.layout.root))


@pytest.mark.parametrize("policy", ["epoch", "lru"])
def test_eight_processes(make: Callable[..., StokerFileSystem], tmp_path: Path, policy: Policy) -> None:
    """Pages are evicted by name all the time, and with `lru` by each page that comes as well."""
    make_objects(tmp_path / "store")
    rules = (Rule(freshness=Freshness.IMMUTABLE),)
    filesystem = make("file", rules=rules, limit_bytes=LIMIT_BYTES, eviction=policy)
    most = run(filesystem, tmp_path / "store", num_reads=NUM_READS)
    assert LIMIT_BYTES / 2 < most <= LIMIT_BYTES
    stats = filesystem.pages.stats()
    assert (stats.damaged, filesystem.pages.verify().damaged.pages) == (0, 0)
    assert stats.evicted.pages > 100 if policy == "lru" else stats.refused > 100
