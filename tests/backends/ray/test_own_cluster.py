"""A cluster for one run: its ranks' brokers on a machine share it, whichever comes first or goes last."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.backends.ray import clusters
from stoker.backends.ray.own_cluster import OwnCluster
from stoker.run.rank import name_of_group
from tests.backends.ray.conftest import needs_ray
from tests.waiting import await_that

pytestmark = pytest.mark.timeout(110)


def test_ranks_that_meet_in_one_place_have_one_name() -> None:
    ranks = [
        name_of_group({"MASTER_ADDR": "a", "MASTER_PORT": "29500", "RANK": rank, "LOCAL_WORLD_SIZE": "2"})
        for rank in ("0", "1")
    ]
    assert ranks[0] == ranks[1] != name_of_group({"MASTER_ADDR": "a", "MASTER_PORT": "29501"})
    assert name_of_group({"RANK": "0"}) == "", "ranks that meet in a file have clusters each"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    needs_ray()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path
    await_that("no folder is left", lambda: not list(tmp_path.glob("stoker-run-cluster-*")), 30)


def _be_killed_after_start(shared: str, started: Any) -> None:
    OwnCluster(1, shared)
    started.set()
    signal_never_comes = multiprocessing.Event()
    signal_never_comes.wait()


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.slow("starts a cluster")
def test_it_ends_with_the_last_that_has_joined(folders: Path) -> None:
    started = multiprocessing.get_context("fork").Event()
    first = multiprocessing.get_context("fork").Process(target=_be_killed_after_start, args=("run", started))
    first.start()
    assert started.wait(90)
    second, third = OwnCluster(1, "run"), OwnCluster(1, "run")
    assert second.target == third.target
    (folder,) = folders.glob("stoker-run-cluster-*")
    record = clusters.read(folder)
    assert record is not None
    first.kill()  # which had started it
    first.join()
    second.close()
    assert clusters.processes(record)
    assert clusters.read(folder) == record
    third.close()
    await_that("it ends with the last", lambda: not clusters.processes(record), 30)
    assert not os.path.exists(record.temp_dir)
