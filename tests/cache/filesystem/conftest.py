"""A cache directory of its own for each test, and stores that count what is asked of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule
from tests.cache.s3_server import S3Server

S3Make = Callable[..., StokerFileSystem]
LIMIT_BYTES = 64 << 20
CACHED = (Rule(),)
"""Caches every path, local files too."""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of the cache."""
    place = tmp_path / "cache"
    yield place
    close_page_stores(place)


@pytest.fixture
def make(directory: Path) -> Callable[..., StokerFileSystem]:
    """Filesystems that share the test's cache."""

    def build(target_protocol: str, target_options: dict[str, Any] | None = None, **options: Any) -> StokerFileSystem:
        options = {"directory": str(directory), "limit_bytes": LIMIT_BYTES, "rules": CACHED, **options}
        return fsspec.filesystem(
            "stoker",
            target_protocol=target_protocol,
            target_options=target_options,
            skip_instance_cache=True,
            **options,
        )

    return build


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """The store itself, empty before and after."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server."""
    server = S3Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def s3_plain(s3_server: S3Server) -> Any:
    """The store itself, with a bucket ``tests``."""
    s3_server.client.create_bucket(Bucket="tests")
    return fsspec.filesystem("s3", **s3_server.options, skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture(scope="session")
def s3_make(s3_server: S3Server, s3_plain: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Make]:
    """Filesystems over the server, one for each set of rules: building one takes longer than most tests."""
    place = tmp_path_factory.mktemp("s3") / "cache"

    @functools.cache
    def build(rules: tuple[Rule, ...] = CACHED) -> StokerFileSystem:
        options = {"directory": str(place), "limit_bytes": LIMIT_BYTES, "rules": rules, "skip_instance_cache": True}
        return fsspec.filesystem("stoker", target_protocol="s3", target_options=s3_server.options, **options)

    yield build
    close_page_stores(place)
