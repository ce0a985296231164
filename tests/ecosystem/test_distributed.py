"""Two ranks, of torchrun or the program's own: the same losses, and the cores shared between the ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stoker.core import host
from stoker.records.events import LoaderOpened

from .harness import both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(200),
    pytest.mark.slow("two ranks each start python and torch"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("inner", [False, True], ids=["before torchrun", "behind torchrun"])
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
    """Only the first of them prints the report."""
    found = both("ddp_spawn.py", cwd=tmp_path, ordered=False, options=())
    assert [run.header.rank for run in found.ranks] == [0, 1]
    for run in found.ranks:
        assert (run.header.world_size, run.header.local_world_size) == (2, 2)
        assert run.header.config["cpu_budget"] == host.cores() / 2
    said = found.served_err
    assert said.count("stoker ·") + said.count("stoker |") == 1, said
    assert "rank 0 of 2" in said
    assert "no DataLoader" not in said, "the process that started the ranks has nothing to add"
