"""Twelve small models whose gradients are exchanged, and what programs do with them. All on CPUs, in a second."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

Batch = tuple[torch.Tensor, ...]
BATCH = 8


class Mlp(nn.Module):
    """Three linear layers, one used twice; outputs written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(24, 48), nn.Linear(48, 48), nn.Linear(48, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes."""
        hidden = torch.relu_(self.first(x))
        return self.last(torch.relu(self.middle(torch.relu_(self.middle(hidden)))))


class Convolutional(nn.Module):
    """Convolutions, the last over one position, and a head of linear layers, as AlexNet and VGG have."""

    def __init__(self, *, deep: bool, residual: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 8, 3, padding=1)])
        self.convs.extend(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3 if deep else 1))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) if residual else nn.Identity() for _ in self.convs)
        self.residual = residual
        self.over = nn.Conv2d(8, 32, 4)
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes."""
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            after = torch.relu(norm(conv(x)))
            x = x + after if self.residual and place else after
        return self.head(self.over(functional.max_pool2d(x, 2)).flatten(1))


class Recurrent(nn.Module):
    """Words, an LSTM, and a projection onto words, as language models have."""

    def __init__(self, words: int = 120, attends: bool = False) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(words, 16), nn.LSTM(16, 24, batch_first=True)
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True) if attends else None
        self.out = nn.Linear(24, words)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next words."""
        found, _ = self.lstm(self.words(x))
        if self.attention is not None:
            found = found + self.attention(found, found, found, need_weights=False)[0]
        return self.out(found)


class Tied(nn.Module):
    """A transformer whose words are its projection too."""

    def __init__(self, words: int = 120, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, words, bias=False)
        self.checkpoints = checkpoints
        if not checkpoints:
            self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next words."""
        hidden = self.words(x)
        hidden = checkpoint(self.block, hidden, use_reentrant=False) if self.checkpoints else self.block(hidden)
        return self.out(hidden)


class Recommender(nn.Module):
    """Tables and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(200, 8, mode="sum") for _ in range(3)])
        self.bottom, self.top = nn.Linear(6, 8), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Clicks."""
        looked = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        return self.top(torch.cat([self.bottom(x), *looked], 1))


class Experts(nn.Module):
    """Experts of which each batch uses two of four."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(24, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Classes."""
        gates = self.gate(x).softmax(1)
        used = gates.sum(0).topk(2).indices.tolist()
        return sum((gates[:, at : at + 1] * self.experts[at](x) for at in used), torch.zeros(()))


class Adversaries(nn.Module):
    """A generator and what judges it, with two losses in one pass."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.judge = nn.Linear(24, 24), nn.Sequential(nn.Linear(24, 32), nn.LeakyReLU(), nn.Linear(32, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is thought of the real and of the made, used twice."""
        return self.judge(x) - self.judge(torch.tanh(self.make(x)))


@dataclass(frozen=True)
class Model:
    """A model and its batches.

    Attributes:
        make: the model. draw: a batch, of so many samples. words: whether each position has a class.
        unused: whether some weights have no gradient in a step.
    """

    make: Callable[[], nn.Module]
    draw: Callable[[int], Batch]
    words: bool = False
    unused: bool = False


def _flat(count: int) -> Batch:
    return torch.randn(count, 24), torch.randint(10, (count,))


def _images(count: int) -> Batch:
    return torch.randn(count, 3, 8, 8), torch.randint(10, (count,))


def _text(count: int) -> Batch:
    return torch.randint(120, (count, 5)), torch.randint(120, (count, 5))


def _clicks(count: int) -> Batch:
    return torch.randn(count, 6), torch.randint(200, (count, 3, 4)), torch.randint(10, (count,))


MODELS: dict[str, Model] = {
    "mlp": Model(Mlp, _flat),
    "alexnet": Model(lambda: Convolutional(deep=False), _images),
    "vgg": Model(lambda: Convolutional(deep=True), _images),
    "resnet": Model(lambda: Convolutional(deep=True, residual=True), _images),
    "lstm": Model(Recurrent, _text, words=True),
    "nmt": Model(lambda: Recurrent(attends=True), _text, words=True),
    "transformer": Model(Tied, _text, words=True),
    "dlrm": Model(Recommender, _clicks),
    "experts": Model(Experts, _flat, unused=True),
    "gan": Model(Adversaries, _flat),
    "compiled": Model(Mlp, _flat),
    "checkpointed": Model(lambda: Tied(checkpoints=True), _text, words=True),
}
OPTIONS = (
    "plain", "clipping", "accumulation", "no_sync", "autocast", "scaler", "unused", "static", "bucket_view", "penalty",
    "two_losses", "small_last", "join", "freezing",
)  # fmt: skip
"""What programs do; ``SyncBatchNorm`` runs on GPUs alone.

``accumulation`` is without ``no_sync``; ``penalty`` is a loss on the weights."""


@dataclass(frozen=True)
class Case:
    """A model and what its program does."""

    model: str
    option: str

    def __str__(self) -> str:
        return f"{self.model}-{self.option}"


def train(
    case: Case, rank: int, steps: int, serve: Callable[[DistributedDataParallel], Any], bucket_mb: float = 0.01
) -> tuple[list[float], DistributedDataParallel, Any]:
    """Losses of each step, the model, and what ``serve`` returned for it."""
    model, option = MODELS[case.model], case.option
    torch.manual_seed(0)
    if case.model == "compiled":
        torch.compiler.reset()  # code compiled for another object of the class would be used, which has no hooks
    inner = model.make()
    ddp = DistributedDataParallel(
        torch.compile(inner, backend="aot_eager") if case.model == "compiled" else inner,
        bucket_cap_mb=25 if case.model == "compiled" else bucket_mb,  # compiled code has its own idea of the first
        find_unused_parameters=model.unused or option in ("unused", "freezing"),
        static_graph=option == "static" and not model.unused,
        gradient_as_bucket_view=option == "bucket_view",
    )  # fmt: skip
    served = serve(ddp)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(100 + rank)
    losses: list[float] = []
    joined = ddp.join() if option == "join" else contextlib.nullcontext()
    with joined:
        for step in range(steps - (3 if option == "join" and rank == 1 else 0)):
            if option == "freezing" and step in (steps // 2, steps - 4):
                next(inner.parameters()).requires_grad_(step != steps // 2)
            losses.append(_step(ddp, inner, model, option, optimizer, step))
    return losses, ddp, served


def _step(
    ddp: DistributedDataParallel, inner: nn.Module, model: Model, option: str, optimizer: torch.optim.Optimizer,
    step: int,
) -> float:  # fmt: skip
    optimizer.zero_grad()
    total = 0.0
    parts = 2 if option in ("accumulation", "no_sync") else 1
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=option == "scaler")
    for part in range(parts):
        batch = model.draw(BATCH // 2 if option == "small_last" and step % 5 == 4 else BATCH)
        quiet = ddp.no_sync() if option == "no_sync" and part + 1 < parts else contextlib.nullcontext()
        with quiet:
            with torch.autocast("cpu", torch.bfloat16, enabled=option == "autocast"):
                out = ddp(*batch[:-1])
                loss = functional.cross_entropy(out.flatten(0, 1) if model.words else out, batch[-1].flatten())
            if option == "penalty":
                loss = loss + 1e-3 * sum(each.square().sum() for each in inner.parameters())
            if option == "two_losses":
                loss = loss + 0.1 * out.float().square().mean()
            scaler.scale(loss).backward()
        total += float(loss.detach())
    scaler.unscale_(optimizer)
    if option == "clipping":
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return total


def drawn(chance: Any, count: int) -> Iterator[Case]:
    """So many cases, each model at least once if there are enough."""
    names = list(MODELS)
    for place in range(count):
        name = names[place % len(names)]
        yield chance.choice([case for case in cases() if case.model == name])


def cases() -> list[Case]:
    """All that plain DDP can run: it refuses losses on weights that may be unused."""
    every = itertools.product(MODELS, OPTIONS)
    return [Case(name, option) for name, option in every if not (MODELS[name].unused and option == "penalty")]
