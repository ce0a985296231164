"""What the bar of model averaging trains: two models on scikit-learn's digits, in shards by chance or by label."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

_HELD_OUT = 599
"""Samples of the test, a third of all: one of them is 0.17 points of accuracy."""
_BATCH = 16
Shards = Literal["iid", "sorted"]
MODELS = ("mlp", "cnn")


@dataclass(frozen=True, slots=True)
class DigitsCase:
    """One training."""

    model: str
    shards: Shards
    seed: int
    ranks: int
    steps: int
    looks: int
    """Evaluations, evenly over the steps; the last one is at the end."""


class DigitsTraining:
    """One rank of a training: its own copy, its own batches.

    Args:
        case: the training.
        rank: which of its ranks.
    """

    def __init__(self, case: DigitsCase, rank: int) -> None:
        torch.manual_seed(case.seed)
        self.model = _mlp() if case.model == "mlp" else _cnn()
        self.module: nn.Module = self.model
        """What is called: the model, or what is around it."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self._batches = _batches(case, rank)
        _, self._test = _split(case)
        self._every = case.steps // case.looks
        self.accuracy = 0.0
        """At the last evaluation."""

    def backward(self) -> float:
        """Gradients of the next batch; its loss."""
        pixels, labels = next(self._batches)
        self.optimizer.zero_grad(set_to_none=False)
        loss = functional.cross_entropy(self.module(pixels), labels)
        loss.backward()
        return loss.item()

    def evaluate(self, step: int) -> None:
        """The accuracy on the test, where one is due after a step; without DDP around it, so by one rank alone."""
        if step % self._every:
            return
        pixels, labels = _digits()
        self.model.eval()
        with torch.no_grad():
            right = self.model(pixels[self._test]).argmax(1) == labels[self._test]
        self.model.train()
        self.accuracy = float(right.float().mean())


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def _cnn() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *block(1, 8), *block(8, 16), nn.Flatten(), nn.Linear(64, 10))


@cache
def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def _split(case: DigitsCase) -> tuple[NDArray[np.int64], Tensor]:
    """Samples to train on, in the order in which they are divided, and those of the test."""
    _, labels = _digits()
    order = np.random.default_rng(case.seed).permutation(len(labels))
    train, test = order[_HELD_OUT:], order[:_HELD_OUT]
    if case.shards == "sorted":
        train = train[np.argsort(labels.numpy()[train], kind="stable")]
    return train, torch.from_numpy(test)


def _batches(case: DigitsCase, rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    pixels, labels = _digits()
    own = np.array_split(_split(case)[0], case.ranks)[rank]
    chance = np.random.default_rng((case.seed, rank))
    while True:
        order = chance.permutation(own)
        for begin in range(0, len(order) - _BATCH + 1, _BATCH):
            batch = torch.from_numpy(order[begin : begin + _BATCH])
            yield pixels[batch], labels[batch]
