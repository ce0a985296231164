"""Eight small trainings of different kinds, on CPUs. Arguments: the kind, and a file for losses and seconds."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCHES = 9


class Attention(nn.Module):
    """A block of attention and MLP."""

    def __init__(self, width: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        batch, length, width = x.shape
        parts = self.inner(self.before(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        out = nn.functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.drop(self.outer(out.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.after(x)))))


class Transformer(nn.Module):
    """Attention over tokens, with a head for each of them or for their mean."""

    def __init__(self, dropout: float, causal: bool, classes: int, tied: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(500, 96)
        self.blocks = nn.ModuleList(Attention(96, dropout, causal) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(96), nn.Linear(96, classes, bias=not tied)
        self.causal = causal
        if tied:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores."""
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x) if self.causal else self.norm(x).mean(1))


class Residual(nn.Module):
    """Two convolutions with averages over batches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return torch.relu(x + self.two(self.second(torch.relu(self.one(self.first(x))))))


class Dense(nn.Module):
    """A residual MLP."""

    def __init__(self, width: int, norm: bool) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.outer(torch.tanh(self.inner(self.norm(x))))


class Ladder(nn.Module):
    """Down and up again, with modules that have names and no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 12, 3, padding=1)
        self.down, self.deep = Residual(12), Residual(12)
        self.up, self.last = Residual(24), nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """An image."""
        kept = self.down(self.enter(x))
        deep = self.deep(nn.functional.max_pool2d(kept, 2))
        return self.last(self.up(torch.cat([kept, nn.functional.interpolate(deep, scale_factor=2.0)], 1)))


Make = Callable[[], tuple[nn.Module, TensorDataset, int]]


def _tokens(model: nn.Module, size: int, labels: Tensor | None = None) -> tuple[nn.Module, TensorDataset, int]:
    x = torch.randint(500, (size * BATCHES, 48))
    return model, TensorDataset(x, x.roll(-1, 1) if labels is None else labels), size


def _images(model: nn.Module, size: int, classes: int) -> tuple[nn.Module, TensorDataset, int]:
    x = torch.randn(size * BATCHES, 3, 16, 16)
    return model, TensorDataset(x, torch.randint(classes, (len(x),)) if classes else x.flip(2)), size


def _rows(model: nn.Module, size: int) -> tuple[nn.Module, TensorDataset, int]:
    x = torch.randn(size * BATCHES, 64)
    return model, TensorDataset(x, torch.randint(10, (len(x),))), size


def _stack(blocks: int, norm: bool) -> nn.Module:
    return nn.Sequential(*[Dense(64, norm) for _ in range(blocks)], nn.Linear(64, 10))


KINDS: dict[str, Make] = {
    "decoder": lambda: _tokens(Transformer(0.1, True, 500), 16),
    "tied": lambda: _tokens(Transformer(0.0, True, 500, tied=True), 16),
    "encoder": lambda: _tokens(Transformer(0.1, False, 10), 24, torch.randint(10, (24 * BATCHES,))),
    "residual": lambda: _images(
        nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(5)], nn.Flatten(), nn.Linear(4096, 10)
        ), 24, 10,
    ),
    "ladder": lambda: _images(Ladder(), 32, 0),
    "dense": lambda: _rows(_stack(8, False), 512),
    "averaged": lambda: _rows(_stack(8, True), 512),
    "wide": lambda: _rows(nn.Sequential(nn.Linear(64, 1500), Dense(1500, False), nn.Linear(1500, 10)), 32),
}  # fmt: skip


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    """The loss of a batch."""
    if y.is_floating_point():
        return nn.functional.mse_loss(out, y)
    return nn.functional.cross_entropy(out.flatten(0, -2), y.flatten())


def main(kind: str, out: str) -> None:
    """Trains, and writes."""
    torch.manual_seed(0)
    model, data, size = KINDS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    seconds: list[float] = []
    for x, y in DataLoader(data, batch_size=size):
        begun = time.perf_counter()
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
        losses.append(loss.item())
    with open(out, "w") as file:
        json.dump({"losses": losses, "seconds": seconds}, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
