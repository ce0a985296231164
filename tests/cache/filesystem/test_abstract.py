"""fsspec's own suites for filesystems, over the cache: memory, local files (cached by a rule), and an S3 server."""

from __future__ import annotations

import os
import types
import uuid
from collections.abc import Callable
from typing import Any

import fsspec.tests.abstract as abstract
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.tests.abstract.common import GLOB_EDGE_CASES_TESTS

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem

pytestmark = pytest.mark.integration

Make = Callable[..., StokerFileSystem]


class MemoryFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, make: Make, memory: MemoryFileSystem) -> StokerFileSystem:
        return make("memory")

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *args: "/".join(args)

    @pytest.fixture
    def fs_path(self) -> str:
        return ""


class LocalFixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, make: Make) -> StokerFileSystem:
        return make("file", {"auto_mkdir": True})

    @pytest.fixture
    def fs_path(self, tmpdir: Any) -> str:
        return str(tmpdir)

    @pytest.fixture
    def fs_sanitize_path(self) -> Callable[[str], str]:
        return lambda path: path.replace(os.sep, "/")


class S3Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, s3_make: Make) -> StokerFileSystem:
        return s3_make()

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *args: "/".join(args)

    @pytest.fixture
    def fs_path(self) -> str:
        return f"tests/{uuid.uuid4().hex}"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


def some(test: Any, step: int) -> Any:
    """A test of the suites with some of its patterns: on S3 each takes a hundred requests to the server."""
    again = types.FunctionType(test.__code__, test.__globals__, test.__name__)
    values = GLOB_EDGE_CASES_TESTS["argvalues"][::step]
    return pytest.mark.parametrize(GLOB_EDGE_CASES_TESTS["argnames"], values)(again)


class TestMemoryCopy(abstract.AbstractCopyTests, MemoryFixtures): ...


class TestMemoryGet(abstract.AbstractGetTests, MemoryFixtures): ...


class TestMemoryPut(abstract.AbstractPutTests, MemoryFixtures): ...


class TestMemoryPipe(abstract.AbstractPipeTests, MemoryFixtures): ...


class TestMemoryOpen(abstract.AbstractOpenTests, MemoryFixtures): ...


class TestLocalCopy(abstract.AbstractCopyTests, LocalFixtures):
    test_copy_glob_edge_cases = some(abstract.AbstractCopyTests.test_copy_glob_edge_cases, 4)


class TestLocalGet(abstract.AbstractGetTests, LocalFixtures):
    test_get_glob_edge_cases = some(abstract.AbstractGetTests.test_get_glob_edge_cases, 4)


class TestLocalPut(abstract.AbstractPutTests, LocalFixtures):
    test_put_glob_edge_cases = some(abstract.AbstractPutTests.test_put_glob_edge_cases, 4)


class TestLocalPipe(abstract.AbstractPipeTests, LocalFixtures): ...


class TestLocalOpen(abstract.AbstractOpenTests, LocalFixtures): ...


class TestS3Copy(abstract.AbstractCopyTests, S3Fixtures):
    test_copy_glob_edge_cases = some(abstract.AbstractCopyTests.test_copy_glob_edge_cases, 16)


class TestS3Get(abstract.AbstractGetTests, S3Fixtures):
    test_get_glob_edge_cases = some(abstract.AbstractGetTests.test_get_glob_edge_cases, 16)


class TestS3Put(abstract.AbstractPutTests, S3Fixtures):
    test_put_glob_edge_cases = some(abstract.AbstractPutTests.test_put_glob_edge_cases, 16)


class TestS3Pipe(abstract.AbstractPipeTests, S3Fixtures): ...


class TestS3Open(abstract.AbstractOpenTests, S3Fixtures): ...
