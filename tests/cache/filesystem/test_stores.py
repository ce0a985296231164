"""Stores of other kinds: web servers, caches without room, other nodes that have pages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.config import conf
from fsspec.implementations.memory import MemoryFileSystem

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule
from stoker.cache.reading.fetching import Peers
from stoker.cache.versions import Version
from tests.cache.fault_server import FaultServer

Make = Callable[..., StokerFileSystem]
DATA = random.Random(8).randbytes(5 * PAGE_BYTES + 17)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A web server with :data:`DATA`."""
    server = FaultServer()
    server.objects["/dir/data"] = DATA
    yield server
    server.close()


@pytest.mark.integration
@pytest.mark.parametrize("form", ["stoker://http/{}", "stoker::http://{}"])
def test_a_web_server_by_rule(server: FaultServer, directory: Path, form: str) -> None:
    url = form.format(f"{server.url.removeprefix('http://')}/dir/data")
    rules = (Rule(pattern="http://*"), *DEFAULT_RULES)
    options = {"directory": str(directory), "limit_bytes": 64 << 20, "rules": rules}
    filesystem, path = fsspec.url_to_fs(url, **({"stoker": options} if "::" in url else options))
    assert path == f"{server.url}/dir/data"
    for _ in range(2):
        assert filesystem.cat_file(path) == DATA
        with filesystem.open(path) as file:
            file.seek(PAGE_BYTES)
            assert file.read(10) == DATA[PAGE_BYTES:][:10]
    assert sum(end - start for _, start, end in server.gets) == len(DATA)
    assert filesystem.unstrip_protocol(path) == form.split(":")[0] + f"://http/{path.removeprefix('http://')}"


@pytest.mark.integration
def test_a_web_server_without_a_rule_is_not_cached(server: FaultServer, make: Make) -> None:
    filesystem = make("http", rules=DEFAULT_RULES)
    for _ in range(2):
        assert filesystem.cat_file(f"{server.url}/dir/data", 0, 9) == DATA[:9]
    assert len(server.gets) == 2


@pytest.mark.integration
@pytest.mark.parametrize("told", ["option", "fsspec", "aws"])
def test_two_endpoints_with_one_path(
    server: FaultServer, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: str
) -> None:
    """However a program says which server it means; nothing is ever asked again of what is written once."""
    other = FaultServer()
    other.objects["/dir/data"] = DATA[::-1]
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    options = {"key": "k", "secret": "s", "client_kwargs": {"region_name": "us-east-1"}}
    for there, data in [(server, DATA), (other, DATA[::-1]), (server, DATA)]:
        named = {"endpoint_url": there.url} if told == "option" else {}
        monkeypatch.setitem(conf, "s3", {"endpoint_url": there.url} if told == "fsspec" else {})
        (tmp_path / "config").write_text(f"[default]\nendpoint_url = {there.url}\n" if told == "aws" else "")
        filesystem = make("s3", {**options, **named}, rules=(Rule(freshness=Freshness.IMMUTABLE),))
        assert filesystem.cat("dir/data") == data
    assert sum(end - start for _, start, end in server.gets) == len(DATA)
    other.close()


@pytest.mark.integration
def test_what_is_of_unknown_length_passes_through(server: FaultServer, make: Make) -> None:
    server.states_length = server.knows_ranges = False
    filesystem, path = make("http"), f"{server.url}/dir/data"
    assert filesystem.info(path)["size"] is None
    assert filesystem.cat(path) == DATA
    with filesystem.open(path) as file:
        assert file.read() == DATA
    assert filesystem.reader.counts.hit_bytes == 0


@pytest.fixture
def full(make: Make, memory: MemoryFileSystem) -> StokerFileSystem:
    """A cache too small for whole pages."""
    memory.pipe("/data", DATA)
    return make("memory", limit_bytes=1 << 20)


@pytest.mark.parametrize("read_bytes", [1000, 70_000, 3 * PAGE_BYTES, -1])
def test_without_room_each_byte_is_still_fetched_once(full: StokerFileSystem, read_bytes: int) -> None:
    with full.open("/data") as file:
        assert b"".join(iter(lambda: file.read(read_bytes), b"")) == DATA
    assert full.reader.counts.fetched_bytes == len(DATA)
    assert full.pages.stats().refused == len(DATA) // PAGE_BYTES


def test_without_room_calls_read_the_store(full: StokerFileSystem) -> None:
    assert full.cat("/data") == DATA
    assert full.cat_file("/data", 5, 10) == DATA[5:10]
    assert full.cat_ranges(["/data", "/data"], [0, 2 * PAGE_BYTES], [4, 2 * PAGE_BYTES + 4]) == [
        DATA[:4], DATA[2 * PAGE_BYTES :][:4],
    ]  # fmt: skip


class EvenPages(Peers):
    """Another node that has every other page."""

    def fetch(
        self, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]], into: list[memoryview]
    ) -> list[bool]:
        assert name.path == "/data"
        assert version is not None
        for (start, end), buffer in zip(ranges, into, strict=True):
            if start // PAGE_BYTES % 2 == 0:
                buffer[:] = DATA[start:end]
        return [start // PAGE_BYTES % 2 == 0 for start, _ in ranges]


def test_other_nodes_are_asked_before_the_store(make: Make, memory: MemoryFileSystem) -> None:
    memory.pipe("/data", DATA)
    filesystem = make("memory")
    filesystem.reader.fetcher.peers = EvenPages()
    assert filesystem.cat("/data") == DATA
    counts = filesystem.reader.counts
    assert (counts.peer_bytes, counts.fetched_bytes) == (3 * PAGE_BYTES, 2 * PAGE_BYTES + 17)
    assert filesystem.cat("/data") == DATA
    assert counts.peer_bytes == 3 * PAGE_BYTES


def test_options_that_only_the_store_knows_reach_it(make: Make, memory: MemoryFileSystem) -> None:
    memory.pipe("/data", b"data")
    filesystem = make("memory")
    assert filesystem.cat_file("/data", 0, 2, version_id="x") == b"da"
    assert filesystem.reader.counts.asked_bytes == 0
