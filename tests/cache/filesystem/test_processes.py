"""Processes and threads that share a cache: a page is fetched once, forked children read, wrong answers stay out."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.names import PAGE_BYTES
from stoker.cache.policies import Freshness, Rule
from stoker.cache.sources import retrying
from stoker.core.errors import SourceChangedError, SourceReadError
from tests.cache import fault_server
from tests.cache.fault_server import FaultServer

pytestmark = pytest.mark.integration

Make = Callable[..., StokerFileSystem]
DATA = random.Random(6).randbytes(6 * PAGE_BYTES + 77)
OTHER = random.Random(7).randbytes(len(DATA))
PATH = "bucket/data"
PROCESSES = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultServer]:
    """An S3 server with :data:`DATA`."""
    monkeypatch.setattr(retrying, "FIRST_PAUSE_S", 0.001)
    server = FaultServer()
    server.objects[f"/{PATH}"] = DATA
    yield server
    server.close()


@pytest.fixture
def filesystem(make: Make, server: FaultServer) -> StokerFileSystem:
    """Over the server."""
    options: dict[str, Any] = {
        "key": "k", "secret": "s", "endpoint_url": server.url, "client_kwargs": {"region_name": "us-east-1"},
        "config_kwargs": {"read_timeout": 0.5, "retries": {"max_attempts": 0}},
    }  # fmt: skip
    return make("s3", options)


def in_children(work: Callable[[], bool]) -> list[int]:
    """Exit codes of forked children: 0 where the work says True."""
    children: list[int] = []
    for _ in range(PROCESSES):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                code = 0 if work() else 1
            finally:
                os._exit(code)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


@pytest.mark.parametrize("is_open", [False, True])
def test_forked_children_fetch_each_page_once(filesystem: StokerFileSystem, server: FaultServer, is_open: bool) -> None:
    def work() -> bool:
        if not is_open:
            return filesystem.cat(PATH) == DATA
        with filesystem.open(PATH) as file:
            return b"".join(iter(lambda: file.read(300_000), b"")) == DATA

    assert in_children(work) == [0] * PROCESSES
    fetched = sorted(
        page for _, start, end in server.gets for page in range(start // PAGE_BYTES, -(-end // PAGE_BYTES))
    )
    assert fetched == list(range(7))


def test_a_child_of_a_process_that_has_read(filesystem: StokerFileSystem, server: FaultServer) -> None:
    assert filesystem.cat_file(PATH, 0, 10) == DATA[:10]
    assert in_children(lambda: filesystem.cat(PATH) == DATA) == [0] * PROCESSES


def test_threads_fetch_each_page_once(filesystem: StokerFileSystem, server: FaultServer) -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(filesystem.cat(PATH) == DATA)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert sum(end - start for _, start, end in server.gets) == len(DATA)


@pytest.mark.parametrize("fault", [
    fault_server.truncate, fault_server.send_less, fault_server.send_other_range, fault_server.ignore_range,
    fault_server.lie_about_etag, fault_server.drop_etag, fault_server.be_busy, fault_server.hang_up,
    fault_server.stall,
])  # fmt: skip
def test_one_wrong_answer_changes_nothing(
    filesystem: StokerFileSystem, server: FaultServer, fault: fault_server.Fault
) -> None:
    server.faults += [lambda *_: False, fault]
    assert filesystem.cat(PATH) == DATA
    assert filesystem.cat(PATH) == DATA


@pytest.mark.parametrize(("fault", "error"), [
    (fault_server.truncate, SourceReadError), (fault_server.send_other_range, SourceReadError),
    (fault_server.lie_about_etag, SourceChangedError), (fault_server.drop_etag, SourceChangedError),
])  # fmt: skip
def test_wrong_answers_for_ever_are_an_error_and_are_not_kept(
    filesystem: StokerFileSystem, server: FaultServer, fault: fault_server.Fault, error: type[Exception]
) -> None:
    assert filesystem.info(PATH)["size"] == len(DATA)
    server.faults += [fault] * 500
    with pytest.raises(error):
        filesystem.cat(PATH)
    server.faults.clear()
    assert filesystem.cat(PATH) == DATA


def test_an_overwrite_while_a_call_reads(make: Make, filesystem: StokerFileSystem, server: FaultServer) -> None:
    """The object is replaced by one of the same size under the third request: the call is for the new one then."""
    always = make("s3", dict(filesystem.spec.options), rules=(Rule(freshness=Freshness.ALWAYS),))

    def overwrite() -> None:
        if len(server.gets) == 3:
            server.objects[f"/{PATH}"] = OTHER

    server.on_get = overwrite
    assert always.cat(PATH) == OTHER


def test_overwrites_without_end_are_an_error(filesystem: StokerFileSystem, server: FaultServer) -> None:
    versions = iter(range(10**9))

    def overwrite() -> None:
        server.objects[f"/{PATH}"] = DATA[:-8] + next(versions).to_bytes(8, "big")

    server.on_get = overwrite
    with pytest.raises(SourceChangedError):
        filesystem.cat(PATH)


def test_a_store_that_is_gone_still_has_its_pages_served(filesystem: StokerFileSystem, server: FaultServer) -> None:
    assert filesystem.cat(PATH) == DATA
    server.faults += [fault_server.be_busy] * 500
    assert filesystem.cat(PATH) == DATA
    assert filesystem.info(PATH)["size"] == len(DATA)
