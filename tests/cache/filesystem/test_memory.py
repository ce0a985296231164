"""How much memory a program's reads take, in a process of its own, where the cache keeps nothing of what it reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.cache.names import PAGE_BYTES
from stoker.cache.reading.readahead import TOTAL_PAGES
from stoker.cache.reading.request_planning import MAX_REQUEST_PAGES, PARALLEL
from tests.cache.fault_server import FaultServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

SIZE = 48 * PAGE_BYTES
FILES = 24
LIMIT_BYTES = (TOTAL_PAGES + 2 * PARALLEL * 2 * MAX_REQUEST_PAGES) * PAGE_BYTES + (32 << 20)
"""Read ahead, and an answer with its parts for each thread that fetches; Python's allocator keeps some besides."""

PROGRAM = """
import json, sys, threading, time
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem

url, directory, kind, files, size = sys.argv[1:4] + [int(each) for each in sys.argv[4:]]
options = {"key": "k", "secret": "s", "endpoint_url": url, "skip_instance_cache": True}
filesystem = StokerFileSystem("s3", options, directory=directory, limit_bytes=16 << 20)

def anonymous_bytes():
    with open("/proc/self/status") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

def watch():
    global peak
    while not ended.wait(0.002):
        peak = max(peak, anonymous_bytes())

def in_order(path):
    with filesystem.open(path) as file:
        while file.read(1 << 20):
            if kind == "slow":
                time.sleep(0.02)  # a consumer that is slower than the store

def all_open():
    opened = [filesystem.open(path) for path in paths]
    for file in opened:  # half of each, so that the other half is read ahead
        for _ in range(size // 2 >> 20):
            file.read(1 << 20)
    time.sleep(1.0)
    for file in opened:
        while file.read(1 << 20):
            pass

def into_one_buffer(path):
    buffer = bytearray(size // 2)
    with filesystem.open(path) as file:
        while file.readinto(buffer):
            pass

def ranges(path):
    for first in range(0, size, 8 << 20):
        starts = list(range(first, first + (8 << 20), 1 << 19))
        assert len(filesystem.cat_ranges([path] * 16, starts, [start + 100 for start in starts])) == 16

paths = [f"bucket/{number}" for number in range(files)]
filesystem.cat_file("bucket/first", 0, 10)
before = peak = anonymous_bytes()
ended = threading.Event()
watcher = threading.Thread(target=watch)
watcher.start()
if kind == "open":
    all_open()
else:
    work = {"ranges": ranges, "buffer": into_one_buffer}.get(kind, in_order)
    threads = [threading.Thread(target=work, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
ended.set()
watcher.join()
fetched, refused = filesystem.reader.counts.fetched_bytes, filesystem.pages.stats().refused
print(json.dumps({"grown": peak - before, "fetched": fetched, "refused": refused}))
"""


@pytest.fixture
def server() -> Iterator[FaultServer]:
    server = FaultServer()
    data = bytes(SIZE)
    server.objects = {f"/bucket/{name}": data for name in ("first", *range(FILES))}
    yield server
    server.close()


@pytest.mark.slow("reads far more than it may keep, in a process of its own")
@pytest.mark.parametrize(
    ("kind", "files", "own_bytes"),
    [("slow", FILES, 0), ("open", FILES, 0), ("ranges", 8, 0), ("buffer", 4, 4 * SIZE // 2)],
)
def test_memory_is_bounded_whatever_is_read(
    server: FaultServer, tmp_path: Path, kind: str, files: int, own_bytes: int
) -> None:
    """Programs read many times what is allowed; ``own_bytes`` are their own buffers."""
    words = [server.url, str(tmp_path / "cache"), kind, str(files), str(SIZE)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["refused"] > 0  # the cache is full, so that what was read ahead is nowhere else
    assert told["fetched"] > 2 * files * PAGE_BYTES
    assert told["grown"] < LIMIT_BYTES + own_bytes
