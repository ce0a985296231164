"""`stoker cache warm --replicas`: pages on several workers, an exact account, and reads that outlive an owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.sources.opening import open_source
from tests.cache.cluster.nodes import fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

SIZES = [0, 1, 5000, PAGE_BYTES, 3 * PAGE_BYTES + 7, *[20_000] * 15]


def warm(started: Started, join: str, folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    done = started.command(
        "warm", f"file://{folder}", "--join", join, "--secret-file", str(started.secret),
        "--dir", str(started.folder / "own"), "--json", *options,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def files(folder: Path, sizes: list[int]) -> list[Path]:
    folder.mkdir()
    paths = [folder / str(number) for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        path.write_bytes(bytes([number]) * size)
    return paths


def test_every_page_is_on_two_workers_and_outlives_its_owner(started: Started, tmp_path: Path) -> None:
    _, join = started.start_all(3)
    paths = files(tmp_path / "data", SIZES)
    source = open_source(FILES)
    versions = [source.info(str(path)).version for path in paths]
    wanted = [path.read_bytes() for path in paths]
    status, account = warm(started, join, tmp_path / "data", "--replicas", "2")
    assert status == 0, account
    whole = {"objects": len(SIZES), "num_bytes": sum(SIZES)}
    assert account["planned"] == whole
    assert account["fetched"]["num_bytes"] == sum(SIZES)
    client = started.client(join, timeout_s=2.0)
    told = [client.status(node) or {} for node in started.workers]
    num_pages = sum(-(-size // PAGE_BYTES) for size in SIZES)
    assert sum(each["directories"][0]["pages"] for each in told) == 2 * num_pages
    assert sum(each["fetches"] for each in told) == num_pages  # the second worker has them from the first
    status, account = warm(started, join, tmp_path / "data", "--replicas", "2")
    assert (status, account["present"]) == (0, whole)
    for path in paths:
        path.unlink()
    started.kill(next(iter(started.workers)))
    for path, version, data in zip(paths, versions, wanted, strict=True):
        came = fetch(client, ObjectName(FILES.namespace, str(path)), version, [(0, len(data))])
        assert came == ([True], [data])


def test_what_finds_no_room_or_no_worker_is_in_the_account(started: Started, tmp_path: Path) -> None:
    nodes, join = started.start_all(2, "--size", "6MiB")
    files(tmp_path / "data", [PAGE_BYTES // 2] * 20)
    status, account = warm(started, join, tmp_path / "data", "--replicas", "2")
    assert status == 1
    assert account["refused"]["objects"] > 0
    assert sum(account[part]["objects"] for part in ("fetched", "refused")) == 20
    client = started.client(join)
    pages = [(client.status(node) or {})["directories"][0]["pages"] for node in nodes]
    assert min(pages) >= account["fetched"]["objects"] - account["evicted"]["objects"]
    started.kill(nodes[0])
    status, account = warm(started, join, tmp_path / "data", "--replicas", "2")
    assert status == 1
    assert account["failed"]["objects"] > 0
    assert sum(account[part]["objects"] for part in ("failed", "refused")) == 20
    assert all("does not answer" in failure["reason"] for failure in account["failures"])


def test_there_must_be_enough_workers_and_a_ring(started: Started, tmp_path: Path) -> None:
    files(tmp_path / "data", [1])
    words = ("warm", f"file://{tmp_path}/data", "--dir", str(tmp_path / "own"), "--replicas", "2")
    assert "add --join RING" in started.command(*words).stderr
    alone = started.command(*words, "--join", "static:127.0.0.1:1", "--secret-file", str(started.secret))
    assert "`--replicas` must be 1 to the number of workers in the ring (1), got 2" in alone.stderr
