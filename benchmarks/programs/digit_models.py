"""Small models of digits for the bars of `deploy`: made, trained on scikit-learn's 8 x 8 images, split by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

TRAINED = 1257
"""Of 1,797 images; the others test."""


@dataclass(frozen=True)
class Digits:
    """Images (n, 1, 8, 8) in [0, 1] and their labels."""

    images: torch.Tensor
    labels: torch.Tensor

    def batches(self, size: int = 64) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """In order."""
        return list(zip(self.images.split(size), self.labels.split(size), strict=True))


class Residual(nn.Module):
    """Convolutions 1-8-16, pooling, a residual convolution 16-16, dense 256-32-10; batch norm folds away."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.pool = nn.MaxPool2d(2)
        self.third = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.hidden, self.head = nn.Linear(256, 32), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of digits."""
        kept = self.pool(self.second(self.first(images)))
        joined = torch.relu(self.third(kept) + kept)
        return self.head(torch.relu(self.hidden(joined.flatten(1))))


class Depthwise(nn.Module):
    """A convolution, two of depthwise and pointwise, a mean, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()]
        for inputs, outputs, stride in ((8, 16, 2), (16, 32, 1)):
            layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs)]
            layers += [nn.ReLU6(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.features, self.head = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of digits."""
        return self.head(self.features(images))


def perceptron() -> nn.Module:
    """64-32-16-10, with a function that becomes a table."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 10)
    )  # fmt: skip


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": perceptron, "residual CNN": Residual, "depthwise CNN": Depthwise,
}  # fmt: skip


def digits(seed: int = 0) -> tuple[Digits, Digits]:
    """Training and test images.

    Raises:
        ImportError: scikit-learn is not installed.
    """
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    images = torch.tensor(bunch.images[order] / 16.0, dtype=torch.float32)[:, None]
    labels = torch.tensor(bunch.target[order], dtype=torch.int64)
    return Digits(images[:TRAINED], labels[:TRAINED]), Digits(images[TRAINED:], labels[TRAINED:])


def trained(name: str, data: Digits, *, epochs: int = 12, seed: int = 0) -> nn.Module:
    """A model of :data:`MODELS` in evaluation mode."""
    torch.manual_seed(seed)
    model = MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(epoch))
        for part in order.split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.images[part]), data.labels[part]).backward()
            optimizer.step()
    return model.eval()
