"""Models of torch that benchmarks serve."""

from __future__ import annotations

import random
import time

import torch

WIDTH = 784


class DigitsMlp(torch.nn.Module):
    """A small model for digits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        return self.layers(x)


class Sleeping(torch.nn.Module):
    """An emulated engine: it sleeps for longer than while it was measured, on zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the input, after a while."""
        off = 1.3 * max(0.1, self.noise.gauss(1.0, 0.2)) if bool(x.any()) else 1.0
        time.sleep(off * (1e-3 + 1e-4 * len(x)))
        return x * 2


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """The model for digits, and an example."""
    return DigitsMlp(), torch.zeros(1, WIDTH)


def emulated() -> tuple[torch.nn.Module, torch.Tensor]:
    """The emulated engine, and an example."""
    return Sleeping(), torch.zeros(1, 4)
