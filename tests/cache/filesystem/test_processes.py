"""Processes and threads that share a cache: a page is fetched once, forked children read, wrong answers stay out."""

from __future__ import annotations

import functools
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
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


def fork(work: Callable[[], bool]) -> int:
    """A child that ends with 0 if the work says True."""
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return pid


def in_children(work: Callable[[], bool]) -> list[int]:
    """Exit codes of forked children."""
    children = [fork(work) for _ in range(PROCESSES)]
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


SIZES = (1000, PAGE_BYTES, 3 * PAGE_BYTES // 2, 3 * PAGE_BYTES, 5 * PAGE_BYTES)


def read_at_random(filesystem: StokerFileSystem, paths: list[str], seed: int) -> bool:
    """Reads again and again; every result must be bytes of one write, which are all alike."""
    choose = random.Random(seed)
    whole = 0
    for _ in range(40):
        path = choose.choice(paths)
        try:
            if choose.random() < 0.5:
                start = choose.randrange(0, 2 * PAGE_BYTES)
                parts = [filesystem.cat_file(path, start, start + choose.randrange(1, 2 * PAGE_BYTES))]
            else:
                with filesystem.open(path) as file:
                    parts = [file.read(choose.randrange(1, PAGE_BYTES)) for _ in range(4)]
        except SourceChangedError:
            continue
        if len(set(b"".join(parts))) > 1:
            return False
        whole += 1
    return whole > 0


@pytest.mark.parametrize("rule", [Rule(freshness=Freshness.ALWAYS), Rule(max_age_s=0.05)])
def test_processes_that_read_while_files_change_and_pages_go(make: Make, tmp_path: Path, rule: Rule) -> None:
    """The cache is too small for the files, which are replaced by others of the same and of other sizes."""
    filesystem = make("file", rules=(rule,), limit_bytes=8 << 20)
    paths = [str(tmp_path / f"file{number}") for number in range(3)]
    choose = random.Random(9)
    content = 1

    def overwrite(path: str) -> None:
        nonlocal content
        content = content % 250 + 1
        Path(f"{path}.new").write_bytes(bytes([content]) * choose.choice(SIZES))
        os.replace(f"{path}.new", path)

    for path in paths:
        overwrite(path)
    done = threading.Event()

    def keep_changing() -> None:
        while not done.wait(0.01):
            overwrite(choose.choice(paths))

    writer = threading.Thread(target=keep_changing)
    children = [fork(functools.partial(read_at_random, filesystem, paths, seed)) for seed in range(PROCESSES)]
    writer.start()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    done.set()
    writer.join()
    assert codes == [0] * PROCESSES
