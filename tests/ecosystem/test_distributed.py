"""Two ranks of torchrun, stoker outside or inside of it: the same losses, and the cores shared between the ranks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stoker.core import host
from stoker.core.events import LoaderOpened

from .harness import both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize("inner", [False, True], ids=["stoker run torchrun", "torchrun stoker run"])
def test_data_parallel_ranks(inner: bool, tmp_path: Path) -> None:
    found = both("ddp_loop.py", cwd=tmp_path, launcher=TORCHRUN, inner=inner)
    assert [run.header.rank for run in found.ranks] == [0, 1]
    assert {run.header.run_id for run in found.ranks} == {found.ranks[0].header.run_id}
    for run in found.ranks:
        assert (run.header.world_size, run.header.local_world_size) == (2, 2)
        opened = {event.loader: event for event in run.events if isinstance(event, LoaderOpened)}
        tiers = [(loader.declared_workers, loader.tier) for loader in opened.values()]
        assert tiers == [(0, "process"), (2, "elastic")]
        assert run.header.config["cpu_budget"] == host.cores() / 2
