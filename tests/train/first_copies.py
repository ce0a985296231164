"""DDP's first copy by chain on ranks of a group: what each of them finds."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train.program.replicas import ReplicaWatch
from stoker.train.ring import synchronise
from stoker.train.ring.groups import opened


class Mixed(nn.Module):
    """Parameters and buffers of several dtypes and layouts, different on each rank, of 2 MB."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(rank)
        self.large = nn.Parameter(torch.randn(600, 500, generator=made))
        self.turned = nn.Parameter(torch.randn(80, 70, generator=made).t())
        self.images = nn.Parameter(torch.randn(4, 3, 5, 5, generator=made).to(memory_format=torch.channels_last))
        self.brief = nn.Parameter(torch.randn(300, generator=made).bfloat16(), requires_grad=False)
        self.single = nn.Parameter(torch.tensor(float(rank)))
        self.empty = nn.Parameter(torch.zeros(0))
        self.tied = self.large
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("odd", torch.tensor([float("nan"), float("-inf"), -0.0, rank]))
        self.register_buffer("mask", torch.rand(100, generator=made) > 0.5)
        self.register_buffer("wide", torch.randn(200_000, generator=made).double())


def bits(module: nn.Module, names: Callable[[str], bool] = lambda _: True) -> bytes:
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return b"".join(
        each.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, each in state.items()
        if names(name)
    )


@contextmanager
def watched() -> Iterator[tuple[list[bool], list[str]]]:
    """DDP as `--comm auto` makes it: whether each module was copied by chain, and what was said."""
    done: list[bool] = []
    said: list[str] = []

    def copy(module: Any, group: Any, buffers: bool) -> bool:
        done.append(synchronise.copied_by_chain(module, group, said.append, buffers=buffers))
        return done[-1]

    watch = ReplicaWatch(lambda ddp: None, copy)
    watch.install()
    try:
        yield done, said
    finally:
        watch.remove()


def _sockets() -> int:
    return sum(thread.name.startswith("stoker-exchange") for thread in threading.enumerate())


def copied(rank: int) -> dict[str, Any]:
    """Modules by chain, and what is left to torch: small ones, and those that the program wants as they are."""
    found: dict[str, Any] = {}
    first = bits(Mixed(0))
    own = Mixed(rank)
    strides = [each.stride() for each in own.parameters()]
    with watched() as (done, said):
        ddp = DistributedDataParallel(own)
        found["alike"] = bits(own) == first and strides == [each.stride() for each in own.parameters()]
        found["sockets"] = _sockets(), opened(ddp.process_group) is None
        apart = Mixed(rank)
        kept = bits(apart, lambda name: name in dict(apart.named_buffers()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer torch has another name for it
            DistributedDataParallel(apart, broadcast_buffers=False)
        found["parameters"] = bits(apart, lambda name: name in dict(apart.named_parameters())) == bits(
            Mixed(0), lambda name: name in dict(apart.named_parameters())
        )
        found["buffers"] = bits(apart, lambda name: name in dict(apart.named_buffers())) == kept
        ignoring = Mixed(rank)
        ignoring._ddp_params_and_buffers_to_ignore = ["odd", "single"]
        DistributedDataParallel(ignoring, None, None, 0)
        found["ignored"] = bool(ignoring.single == rank and ignoring.odd[3] == rank and ignoring.count == 0)
        found["chained"] = list(done)
        DistributedDataParallel(nn.Linear(3, 3))  # small
        DistributedDataParallel(Mixed(rank), init_sync=False)  # as the program wants it
        found["others"] = done[3:]
        try:
            DistributedDataParallel()
        except TypeError:
            found["refused"] = True
    plain = Mixed(rank)
    DistributedDataParallel(plain)
    return {**found, "torch": bits(plain) == first, "said": said}


def uncopied(rank: int) -> dict[str, Any]:
    """The chain fails on rank 1."""
    copy = synchronise._copy

    def failing(*given: Any) -> None:
        if rank == 1:
            raise MemoryError("planted")
        copy(*given)

    own = Mixed(rank)
    with watched() as (done, said), mock.patch.object(synchronise, "_copy", failing):
        DistributedDataParallel(own)
    return {"alike": bits(own) == bits(Mixed(0)), "chained": done, "said": said, "sockets": _sockets()}
