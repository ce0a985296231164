"""Cases on start methods and sharing strategies; spawned workers import torch anew, so these are few and small."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader

from .datasets import AugmentedCounting, EpochRows, Facts, Stream, as_is
from .registry import case
from .transcript import Transcript


@case("context")
def context_fork() -> Transcript:
    t = Transcript()
    for context in ("fork", multiprocessing.get_context("fork"), torch.multiprocessing.get_context("fork")):
        dataset = EpochRows()
        loader = DataLoader(dataset, batch_size=3, shuffle=True, num_workers=2, multiprocessing_context=context)
        for epoch in range(2):
            dataset.set_epoch(epoch)
            t.epoch(loader)
        t.event("context", loader.multiprocessing_context.get_start_method())  # type: ignore[union-attr]
    return t


def by_context(name: str) -> Transcript:
    """Random values and a changed copy in two persistent workers of a start method, over two epochs."""
    t = Transcript()
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": name, "persistent_workers": True}
    t.epochs(DataLoader(AugmentedCounting(), batch_size=3, shuffle=True, **options), draw=True)
    return t


@case("context")
def context_spawn() -> Transcript:
    return by_context("spawn")


@case("context")
def context_forkserver() -> Transcript:
    """The server loads torch once, so that its workers start fast."""
    multiprocessing.set_forkserver_preload(["torch"])
    t = by_context("forkserver")
    t.epoch(DataLoader(Stream(), batch_size=3, num_workers=2, multiprocessing_context="forkserver"))
    return t


@case("context")
def default_start_method_is_kept() -> Transcript:
    t = Transcript()
    t.event("before", multiprocessing.get_start_method(allow_none=True))
    t.epoch(DataLoader(Facts(), batch_size=3, num_workers=2, collate_fn=as_is))
    t.event("after", multiprocessing.get_start_method(allow_none=True))
    t.event("strategy", torch.multiprocessing.get_sharing_strategy())
    t.event("children", all(child.name != "main" for child in multiprocessing.active_children()))
    return t


@case("context")
def file_system_sharing() -> Transcript:
    t = Transcript()
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    t.epochs(DataLoader(EpochRows(), batch_size=3, shuffle=True, num_workers=2))
    torch.multiprocessing.set_sharing_strategy(before)
    return t
