"""A VGG-like head split over four ranks against plain DDP: losses, memory, bytes at the interface, and its checkpoint.

Ranks are forked, each in a network namespace behind a switch, so that an interface carries the bytes of one rank
alone. Where namespaces cannot be made, bytes are not measured.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.nodes import Machine, NoNamespaces, switched
from benchmarks.support.ranks import on_ranks
from stoker.perf.communication.methods import ring_bytes
from stoker.train import split
from stoker.train.splitting.planning import column_elements, pair_elements

BAR = Bar(
    "comm_split",
    "VGG-like head split over 4 ranks: DDP's losses, <= 0.3x its memory, bytes of the closed form, plain checkpoints",
    headline=("losses", "memory", "bytes", "resumed"),
)
RANKS, ROWS, CLASSES = 4, 32, 100
PLAN = {"head.1": "column", "head.3": "row", "head.5": "column"}
CLIP = 0.5
_MEGABITS, _BURST_BYTES = 1000.0, 1 << 20
"""A smaller burst cuts the kernel's segments into packets, whose headers are counted."""


class Net(nn.Module):
    """Two convolutions and a head that has most of the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 64, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(7),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 49, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, CLASSES),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Classes of images (N, 3, 28, 28) as (N, CLASSES)."""
        return self.head(self.features(images))


@dataclass(frozen=True)
class Found:
    """What one rank saw.

    Attributes:
        losses: largest relative difference of a loss from that of DDP, in 64 bits.
        norms: likewise of the norm that gradients are clipped by.
        single: of a loss, in 32 bits.
        buckets: of a loss under DDP with smaller buckets from that of DDP, in 32 bits.
        held: bytes of the head's weights, gradients and optimizer state, over those under DDP.
        sent: bytes of a step at the interface; 0 where it was not measured.
        counted: bytes of a step that split layers sent, as they count them.
        plain: whether plain torch has loaded rank 0's checkpoint, with equal tensors; True on the other ranks.
        resumed: whether the resumed training is the uninterrupted one to the last bit.
    """

    losses: float
    norms: float
    single: float
    buckets: float
    held: float
    sent: float
    counted: float
    plain: bool
    resumed: bool


def measure(options: Options) -> Report:
    """All of it on four ranks."""
    report = Report()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    width, steps = options.pick(1024, 512, 64), options.pick(30, 8, 3)
    with contextlib.ExitStack() as made:
        folder = Path(made.enter_context(tempfile.TemporaryDirectory()))
        try:
            nodes = made.enter_context(switched([_MEGABITS] * RANKS, _BURST_BYTES))
        except NoNamespaces as error:
            report.note(f"bytes at interfaces not measured: {error}")
            nodes = []
        found = _ranks(nodes, lambda rank: _work(rank, nodes, width, steps, folder))
    layers, rest = closed_form(width)
    report.note(f"{RANKS} ranks, {ROWS} images each, {steps} steps, head of width {width}, AdamW, clipped at {CLIP}")
    report.note(f"closed form: {layers / 1e6:.3f} MB of split layers and {rest / 1e6:.3f} MB of all-reduce a step")
    # In 32 bits AdamW lets the last bits grow, whoever changes them: sums in another order are enough.
    report.at_most("losses", "losses apart from DDP's, 64 bits", [max(each.losses for each in found)], 1e-9, 12)
    report.at_most("norms", "norms apart from DDP's, 64 bits", [max(each.norms for each in found)], 1e-9, 12)
    single, buckets = max(each.single for each in found), max(each.buckets for each in found)
    report.figure("single", single)
    report.figure("single_by_buckets", buckets)
    report.note(f"32 bits: losses {single:.1e} apart, and {buckets:.1e} between DDP with buckets of 25 and of 1 MB")
    report.at_most("memory", "memory of the head / DDP's", [max(each.held for each in found)], 0.3)
    report.at_most("counted", "bytes that split layers count / closed form - 1", [_off(found, layers)], 0.0, 4)
    if nodes:
        off = max(abs(each.sent / (layers + rest) - 1) for each in found)
        report.at_most("bytes", "bytes of a step at an interface / closed form - 1", [off], 0.01, 4)
    report.at_least("plain", "rank 0's own checkpoint loads in plain torch", [float(all(e.plain for e in found))], 1.0)
    report.at_least("resumed", "resumed to the last bit", [float(all(each.resumed for each in found))], 1.0)
    return report


def closed_form(width: int) -> tuple[float, float]:
    """Bytes of a step that a rank sends for split layers, and for what DDP keeps."""
    layers = pair_elements(RANKS, ROWS, 64 * 49, width) + column_elements(RANKS, ROWS, width, CLASSES)
    kept = [each for name, each in Net(width).named_parameters() if not _is_cut(name)]
    return 4 * layers, ring_bytes(RANKS, 4.0 * sum(each.numel() for each in kept))


def _off(found: list[Found], layers: float) -> float:
    return max(abs(each.counted / layers - 1) for each in found)


def _is_cut(name: str) -> bool:
    path, _, kind = name.rpartition(".")
    return path in PLAN and (kind == "weight" or PLAN[path] == "column")


def _ranks(nodes: list[Machine], work: Callable[[int], Found]) -> list[Found]:
    if not nodes:
        return on_ranks(RANKS, work, timeout_s=400)
    return on_ranks(
        RANKS, work, enter=[node.enter for node in nodes],
        environ=[{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes], timeout_s=400,
    )  # fmt: skip


def _work(rank: int, nodes: list[Machine], width: int, steps: int, folder: Path) -> Found:
    wide = _steps(DistributedDataParallel(_net(width).double()), rank, steps)
    apart = _apart(_steps(split(_net(width).double(), plan=PLAN), rank, steps), wide)
    plain, ours = DistributedDataParallel(_net(width)), split(_net(width), plan=PLAN)
    theirs, own = AdamW(plain.parameters(), lr=1e-3), AdamW(ours.parameters(), lr=1e-3)
    expected = _train(plain, theirs, rank, range(steps))
    single = _apart(_train(ours, own, rank, range(steps)), expected)
    buckets = _apart(_steps(DistributedDataParallel(_net(width), bucket_cap_mb=1), rank, steps), expected)
    held = _held(ours, own) / _held(plain, theirs)
    exchange = ours.module.get_submodule("head.1").exchange
    counted, sent = exchange.sent_bytes, 0.0
    dist.barrier()
    before = nodes[rank].sent if nodes else 0
    _train(ours, own, rank, range(steps, 2 * steps))
    dist.barrier()
    sent = (nodes[rank].sent - before) / steps if nodes else 0.0
    counted = (exchange.sent_bytes - counted) / steps
    is_plain = _saved(ours, own, width, folder) if rank == 0 else True
    uninterrupted = _train(ours, own, rank, range(steps, steps + 3))
    again = split(_net(width), plan=PLAN)
    optimizer = AdamW(again.parameters(), lr=1e-3)
    # A new DDP has other buckets for its first step, which four ranks sum in another order; plain DDP's has too.
    _train(again, optimizer, rank, range(2))
    dist.barrier()  # the file is there
    state = torch.load(folder / "rank0.pt", weights_only=True)
    again.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    resumed = _train(again, optimizer, rank, range(steps, steps + 3))
    is_same = resumed == uninterrupted and all(
        torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True)
    )
    dist.barrier()  # nobody leaves before all parts are there
    return Found(
        max(apart[::2]), max(apart[1::2]), max(single[::2]), max(buckets[::2]), held, sent, counted, is_plain, is_same
    )


def _steps(ddp: DistributedDataParallel, rank: int, steps: int) -> list[float]:
    return _train(ddp, AdamW(ddp.parameters(), lr=1e-3), rank, range(steps))


def _apart(found: list[float], expected: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True)]


def _net(width: int) -> Net:
    torch.manual_seed(0)
    return Net(width)


def _train(ddp: nn.Module, optimizer: AdamW, rank: int, steps: range) -> list[float]:
    """Losses and norms of steps."""
    found: list[float] = []
    for step in steps:
        random = torch.Generator().manual_seed(1000 * step + rank)
        images = torch.randn(ROWS, 3, 28, 28, generator=random).to(next(ddp.parameters()).dtype)
        classes = torch.randint(CLASSES, (ROWS,), generator=random)
        loss = nn.functional.cross_entropy(ddp(images), classes)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(ddp.parameters(), CLIP)
        optimizer.step()
        found += [loss.item(), norm.item()]
    return found


def _held(ddp: DistributedDataParallel, optimizer: AdamW) -> int:
    """Bytes of the head: weights, gradients, state."""
    tensors: list[Any] = []
    for parameter in ddp.module.get_submodule("head").parameters():
        tensors += [parameter, parameter.grad, *optimizer.state[parameter].values()]
    return sum(each.numel() * each.element_size() for each in tensors if isinstance(each, Tensor))


def _saved(ddp: DistributedDataParallel, optimizer: AdamW, width: int, folder: Path) -> bool:
    """Rank 0 alone saves, while the others go on; whether plain torch has it all."""
    torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "rank0.pt")
    state = torch.load(folder / "rank0.pt", weights_only=True)
    model = _net(width)
    model.load_state_dict(state["model"])
    plain = AdamW(model.parameters(), lr=1e-3)
    plain.load_state_dict(state["optimizer"])
    saved = optimizer.state_dict()["state"]
    is_same = all(
        torch.equal(plain.state[parameter][name], saved[number][name])
        and plain.state[parameter][name].shape == parameter.shape
        for number, parameter in enumerate(model.parameters())
        for name in ("exp_avg", "exp_avg_sq")
    )
    images = torch.randn(4, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return is_same and torch.equal(model(images), ddp.module(images))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
