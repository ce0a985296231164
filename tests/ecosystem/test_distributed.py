"""Two ranks, of torchrun or the program's own: the same losses, and the cores shared between the ranks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core import host
from stoker.core.events import LoaderOpened

from .harness import PROGRAMS, both, environment

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("inner", [False, True], ids=["stoker run torchrun", "torchrun stoker run"])
def test_data_parallel_ranks(inner: bool, tmp_path: Path) -> None:
    found = both("ddp_loop.py", cwd=tmp_path, launcher=TORCHRUN, inner=inner, ordered=False)
    assert [run.header.rank for run in found.ranks] == [0, 1]
    assert {run.header.run_id for run in found.ranks} == {found.ranks[0].header.run_id}
    for run in found.ranks:
        assert (run.header.world_size, run.header.local_world_size) == (2, 2)
        opened = {event.loader: event for event in run.events if isinstance(event, LoaderOpened)}
        tiers = [(loader.declared_workers, loader.tier) for loader in opened.values()]
        assert tiers == [(0, "process"), (2, "elastic")]
        assert run.header.config["cpu_budget"] == host.cores() / 2


def test_ranks_that_the_program_starts_itself(tmp_path: Path) -> None:
    found = both("ddp_spawn.py", cwd=tmp_path, ordered=False)
    assert [run.header.rank for run in found.ranks] == [0, 1]
    for run in found.ranks:
        assert (run.header.world_size, run.header.local_world_size) == (2, 2)
        assert run.header.config["cpu_budget"] == host.cores() / 2


def test_only_the_first_of_such_ranks_prints_the_report(tmp_path: Path) -> None:
    words = ("-m", "stoker", "run", "--run-dir", str(tmp_path / "records"), str(PROGRAMS / "ddp_spawn.py"))
    done = subprocess.run(
        [sys.executable, *words], env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("stoker ·") + done.stderr.count("stoker |") == 1, done.stderr
    assert "rank 0 of 2" in done.stderr
    assert "no DataLoader" not in done.stderr, "the process that started the ranks has nothing to add"
