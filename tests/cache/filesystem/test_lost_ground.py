"""The cache loses its directory, its disk, its descriptors: reads and writes go on without it."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.page_stores import close_page_stores

pytestmark = pytest.mark.integration

SIZES = (10, 100_000, PAGE_BYTES, 5 * PAGE_BYTES + 3)
Make = Callable[..., StokerFileSystem]


def paths(store: MemoryFileSystem, folder: str) -> dict[str, bytes]:
    """Objects below a folder of the store."""
    found = {f"/{folder}/{size}": random.Random(size).randbytes(size) for size in SIZES}
    store.pipe(found)
    return found


def use(filesystem: StokerFileSystem, objects: dict[str, bytes]) -> None:
    """Reads all objects in every way, and writes one."""
    for path, data in objects.items():
        assert filesystem.cat(path) == data
        assert filesystem.info(path)["size"] == len(data)
        with filesystem.open(path) as file:
            assert file.read() == data
    assert filesystem.cat_ranges(list(objects), [1] * len(objects), [9] * len(objects)) == [
        data[1:9] for data in objects.values()
    ]
    filesystem.pipe_file("/written", b"new")
    assert filesystem.cat("/written") == b"new"


def in_child(work: Callable[[], None]) -> int:
    """How a forked child ends; 0 if nothing was raised in it."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_directory_is_removed_under_a_running_program(make: Make, memory: MemoryFileSystem) -> None:
    filesystem = make("memory")
    known = paths(memory, "known")
    use(filesystem, known)
    key = filesystem.reader.name(f"/known/{PAGE_BYTES}").key(0)
    entry = filesystem.pages.lookup(key)
    assert entry is not None
    view = filesystem.pages.view(key, entry)
    shutil.rmtree(filesystem.pages.layout.root)
    use(filesystem, known)
    use(filesystem, paths(memory, "others"))
    assert in_child(lambda: use(filesystem, known)) == 0
    memory.pipe({path: data[::-1] for path, data in known.items()})
    filesystem.invalidate_cache()
    use(filesystem, {path: data[::-1] for path, data in known.items()})
    assert view == known[f"/known/{PAGE_BYTES}"]


def test_a_directory_that_others_made_anew_mixes_nothing(make: Make, memory: MemoryFileSystem) -> None:
    """The old process and the new one give files equal numbers."""
    old = make("memory")
    known = paths(memory, "known")
    use(old, known)
    shutil.rmtree(old.pages.layout.root)

    def use_anew() -> None:
        close_page_stores(old.pages.layout.root)
        changed = {path: data[::-1] for path, data in known.items()}
        memory.pipe(changed)  # of the child's own memory
        use(make("memory"), changed)

    assert in_child(use_anew) == 0
    assert old.pages.layout.root.exists()
    for _ in range(3):
        use(old, known)
        use(old, paths(memory, "others"))
        assert in_child(use_anew) == 0


@pytest.fixture
def without_descriptors() -> Iterator[Callable[[], None]]:
    """Takes all descriptors that the process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def take() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))

    yield take
    for fd in taken:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors(
    make: Make, memory: MemoryFileSystem, without_descriptors: Callable[[], None], directory: Path
) -> None:
    filesystem = make("memory")
    known = paths(memory, "known")
    use(filesystem, known)
    filesystem.pages._maps.files.clear()
    there = filesystem.pages.stats().live
    without_descriptors()
    use(filesystem, known)
    use(filesystem, paths(memory, "others"))
    assert in_child(lambda: use(filesystem, known)) == 0
    assert filesystem.pages.stats().live.pages >= there.pages  # what has no map here is not lost to others


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 3 MiB, where the test may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a filesystem")
    yield place
    close_page_stores(place / "cache")
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("free_bytes", [0, 4096, 300_000])
def test_a_disk_that_fills_up(make: Make, memory: MemoryFileSystem, small_disk: Path, free_bytes: int) -> None:
    filesystem = make("memory", directory=str(small_disk / "cache"), limit_bytes=64 << 20)
    known = paths(memory, "known")
    use(filesystem, known)
    with open(small_disk / "other", "wb", buffering=0) as other, contextlib.suppress(OSError):
        while os.statvfs(small_disk).f_bavail * 4096 > free_bytes:
            other.write(bytes(4096))
    for _ in range(2):
        use(filesystem, known)
        use(filesystem, paths(memory, "others"))
    (small_disk / "other").unlink()
    use(filesystem, known)
