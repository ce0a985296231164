"""pyarrow and pandas read Parquet of a store through the cache: the same tables, columns fetched side by side."""

from __future__ import annotations

import io
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from stoker.cache.filesystem import arrow, arrow_files, routing
from stoker.cache.filesystem.arrow_files import open_file
from stoker.cache.filesystem.parquet_ahead import Chunk, chunks_of, touched, wanted
from stoker.cache.page_stores import close_page_stores
from stoker.cache.policies import Rule
from tests.cache.fault_server import FaultServer

COLUMNS, ROWS = 12, 60_000


def table() -> pa.Table:
    generator = np.random.default_rng(5)
    return pa.table({f"c{number:02}": generator.random(ROWS) for number in range(COLUMNS)})


def test_chunks_to_bring() -> None:
    chunks = [Chunk(group, name, 100 * group + 10 * place, 100 * group + 10 * place + 10)
              for group in range(3) for place, name in enumerate("abc")]  # fmt: skip
    now = touched(chunks, 112, 115)
    assert now == [Chunk(1, "b", 110, 120)]
    assert wanted(chunks, now, {"b"}) == [Chunk(1, "b", 110, 120), Chunk(2, "b", 210, 220)]
    assert [chunk.column for chunk in wanted(chunks, now, {"a", "b"})] == ["a", "b", "a", "b"]
    assert wanted(chunks, now, {"a", "b", "c"}, most_bytes=0) == now
    assert wanted(chunks, [], {"a"}) == []


def test_chunks_are_those_of_the_file(tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "t.parquet", row_group_size=20_000)
    chunks = chunks_of(pq.read_metadata(tmp_path / "t.parquet"))
    assert len(chunks) == 3 * COLUMNS
    assert chunks[0].start == 4
    assert all(one.end <= other.start for one, other in itertools.pairwise(chunks))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """An S3 server that counts."""
    server = FaultServer()
    yield server
    server.close()


@pytest.fixture
def url(server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a Parquet file; S3 is routed."""
    pq.write_table(table(), tmp_path / "t.parquet", row_group_size=20_000, compression="none")
    server.objects["/bucket/t.parquet"] = (tmp_path / "t.parquet").read_bytes()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "k")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    routing.install(rules=(Rule(),), directory=tmp_path / "cache", limit_bytes=64 << 20)
    yield "s3://bucket/t.parquet"
    routing.uninstall()
    close_page_stores(tmp_path / "cache")


@pytest.mark.integration
def test_a_table_is_read_and_read_again(url: str, server: FaultServer) -> None:
    assert pq.read_table(url).equals(table())
    asked = len(server.gets)
    assert asked
    assert pq.read_table(url).equals(table())
    assert pq.read_table(url, columns=["c03"]).equals(table().select(["c03"]))
    assert ds.dataset(url).to_table(columns=["c05"]).equals(table().select(["c05"]))
    assert pq.ParquetFile(url).read(columns=["c07"]).equals(table().select(["c07"]))
    assert len(server.gets) == asked


@pytest.mark.integration
@pytest.mark.parametrize("columns", [["c01"], ["c00", "c11"], ["c02", "c05", "c08"]])
def test_columns_are_right_when_cold(url: str, columns: list[str]) -> None:
    assert pq.read_table(url, columns=columns).equals(table().select(columns))
    filesystem, path = fsspec.url_to_fs(url)
    assert pq.read_table(path, filesystem=filesystem, columns=columns).equals(table().select(columns))


@pytest.mark.integration
def test_columns_are_fetched_side_by_side(url: str, server: FaultServer) -> None:
    """Each answer after the footer's waits until three requests are there at a time."""
    arrived = threading.Condition()
    waiting = 0

    def wait_for_others() -> None:
        nonlocal waiting
        with arrived:
            waiting += len(server.gets) > 1
            arrived.notify_all()
            arrived.wait_for(lambda: waiting == 0 or waiting >= 3, timeout=20)

    server.on_get = wait_for_others
    columns = ["c02", "c05", "c08"]
    assert pq.read_table(url, columns=columns).equals(table().select(columns))
    assert waiting >= 3


@pytest.mark.integration
def test_a_file_that_is_all_cached_is_mapped(url: str) -> None:
    filesystem, path = fsspec.url_to_fs(url)
    first = open_file(filesystem.stoker, path)
    assert not isinstance(first, pa.MemoryMappedFile)
    filesystem.cat(path)
    again = open_file(filesystem.stoker, path)
    assert isinstance(again, pa.MemoryMappedFile)
    assert again.read() == filesystem.cat(path)
    assert pq.read_table(pa.BufferReader(again.getvalue() if hasattr(again, "getvalue") else filesystem.cat(path)))


@pytest.mark.integration
def test_only_routed_urls_change(url: str, tmp_path: Path) -> None:
    routed, path = pafs.FileSystem.from_uri(url)
    assert isinstance(routed, pafs.FileSystem)
    assert isinstance(routed, pafs.PyFileSystem)
    assert isinstance(routed.handler, arrow.StokerHandler)
    assert path == "bucket/t.parquet"
    local, _ = pafs.FileSystem.from_uri(f"file://{tmp_path}")
    assert isinstance(local, pafs.LocalFileSystem)
    assert isinstance(local, pafs.FileSystem)
    assert arrow._options_of("s3://k:s@b/x?endpoint_override=h:1&scheme=http&region=r") == {
        "endpoint_url": "http://h:1", "client_kwargs": {"region_name": "r"}, "key": "k", "secret": "s",
    }  # fmt: skip
    assert arrow._options_of("s3://b/x?unknown=1") is None
    handler: Any = pafs.FSSpecHandler(fsspec.filesystem("memory"))
    assert isinstance(handler, pafs.FSSpecHandler)
    assert not isinstance(handler, arrow.StokerHandler)
    routing.uninstall()
    assert pafs.FileSystem is arrow._FileSystem


class TestTheEndOfAProcess:
    """A thread of pyarrow's that drops a file while the interpreter ends would abort the process."""

    def test_waits_for_files_of_other_threads(self) -> None:
        lent = [io.BytesIO()]
        dropped: list[float] = []
        with mock.patch.object(arrow_files, "_lent", weakref.WeakSet(lent)):

            def drop() -> None:
                time.sleep(0.03)
                dropped.append(time.monotonic())
                lent.clear()

            thread = threading.Thread(target=drop)
            thread.start()
            arrow_files._await_return()  # pyright: ignore[reportPrivateUsage]
            assert dropped
            thread.join()

    def test_does_not_wait_for_what_the_program_keeps(self) -> None:
        kept = io.BytesIO()
        begun_s = time.monotonic()
        with mock.patch.object(arrow_files, "_lent", weakref.WeakSet([kept])):
            arrow_files._await_return()  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() - begun_s < 10
