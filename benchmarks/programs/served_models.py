"""Models of torch that benchmarks serve."""

from __future__ import annotations

import random
import time

import torch

WIDTH = 784
_AWAKE_S = 2e-4
"""More than timers are late."""


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
    """An emulated engine: it takes longer than while it was measured, on zeros, and mostly sleeps.

    What torch computes counts as a part of that time, and the end is waited for awake: timers are 0.05 to 0.1 ms late,
    which an engine of a stated speed is not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.noise = random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the input, after a while."""
        begun_s = time.perf_counter()
        off = 1.3 * max(0.1, self.noise.gauss(1.0, 0.2)) if bool(x.any()) else 1.0
        doubled = x * 2
        end_s = begun_s + off * (1e-3 + 1e-4 * len(x))
        time.sleep(max(0.0, end_s - _AWAKE_S - time.perf_counter()))
        while time.perf_counter() < end_s:
            pass
        return doubled


def mlp() -> tuple[torch.nn.Module, torch.Tensor]:
    """The model for digits, and an example."""
    return DigitsMlp(), torch.zeros(1, WIDTH)


def emulated() -> tuple[torch.nn.Module, torch.Tensor]:
    """The emulated engine, and an example."""
    return Sleeping(), torch.zeros(1, 4)
