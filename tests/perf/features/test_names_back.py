"""After a program was traced, torch's names are those of before, also where the program ended by an error."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # it replaces names of torch itself, with the first fake tensor
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stoker.perf.features.child import _Program
from stoker.perf.features.tracing.accelerator import answering
from stoker.perf.features.tracing.distributed import alone
from stoker.perf.features.tracing.redirect import redirected

OWNERS: tuple[Any, ...] = (
    torch, torch.amp, torch.autograd, torch.cuda, torch.cuda.amp, torch.cuda.nvtx, torch.distributed, fsdp,
    fsdp.FullyShardedDataParallel, nn.DataParallel, nn.Module, nn.Parameter, nn.SyncBatchNorm, nn.functional,
    nn.parallel.DistributedDataParallel, DataLoader, _BaseDataLoaderIter,
)  # fmt: skip

WAYS: dict[str, Callable[[_Program], AbstractContextManager[None]]] = {
    "devices": lambda program: redirected(program.recorder, program.redirect),
    "loaders": lambda program: program._patched(),
    "torch.cuda": lambda _: answering(lambda _: None),
    "ranks": lambda _: alone(lambda _: None),
}


@pytest.mark.parametrize("way", WAYS)
def test_names_are_back(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "0")  # which `alone` sets where they are missing
    before = [dict(vars(owner)) for owner in OWNERS]
    changed: list[bool] = []

    def trace() -> None:
        with WAYS[way](_Program("cuda", {}, tmp_path / "out")):
            changed.append([dict(vars(owner)) for owner in OWNERS] != before)
            raise OSError("the program's own")

    with pytest.raises(OSError, match="the program's own"):
        trace()
    assert changed == [True]
    for owner, kept in zip(OWNERS, before, strict=True):
        assert {
            name for name in kept.keys() | vars(owner).keys() if kept.get(name) is not vars(owner).get(name)
        } == set()
