# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""What the benchmarks of the cache share: objects of random bytes, filesystems with a cache of their own, timing."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cache.filesystem import routing
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule, Verify

MIB = 1 << 20
CACHED = (Rule(max_age_s=3600.0),)
"""Everything is cached, local files too, and the store is not asked again while a benchmark runs."""
ROOMY_BYTES = 16 << 30


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        yield Path(folder)


def random_bytes(count: int, seed: int) -> bytes:
    """The same bytes for the same seed."""
    return np.random.default_rng(seed).bytes(count)


def write_objects(folder: Path, count: int, size: int) -> list[str]:
    """Files of random bytes; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    content = random_bytes(size + count, count)  # neighbours differ by their shift
    paths: list[str] = []
    for number in range(count):
        path = folder / f"{number:06d}"
        path.write_bytes(content[number : number + size])
        paths.append(str(path))
    return paths


@contextlib.contextmanager
def cached(
    directory: Path,
    protocol: str = "file",
    options: dict[str, Any] | None = None,
    *,
    verify: Verify = "always",
    rules: Sequence[Rule] = CACHED,
) -> Iterator[Any]:
    """A filesystem read through a cache in this directory, closed at the end."""
    filesystem = StokerFileSystem(
        protocol, options, directory=directory, limit_bytes=ROOMY_BYTES, rules=tuple(rules), verify=verify,
        skip_instance_cache=True,
    )  # fmt: skip
    try:
        yield filesystem
    finally:
        close_page_stores(directory)


@contextlib.contextmanager
def routed(directory: Path) -> Iterator[None]:
    """Has pyarrow know the cache, as ``stoker run --cache`` and ``stoker.cache.install()`` do."""
    routing.install(directory=directory, limit_bytes=ROOMY_BYTES)
    try:
        yield
    finally:
        routing.uninstall()


def seconds(action: Callable[[], object]) -> float:
    """How long something takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
