# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
"""Steps of small test programs, which show what single operations do not: the host's overhead, and cold tensors.

Each program repeats one kind of operation; its step is timed by phase, and the time of the kernels alone is subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from stoker.perf.features.records import PHASES, Phase, StepFeatures
from stoker.perf.features.step import characterise
from stoker.perf.machine.curves import placed
from stoker.perf.machine.measuring import Times, timed
from stoker.perf.machine.speed import Speed

_LEVELS = (0.5, 1.0, 2.0, 3.0, 4.0)
"""Bytes that a step keeps alive, in multiples of the last cache."""
_LAYERS = 16


@dataclass(frozen=True)
class MeasuredProgram:
    """A module, its arguments, and its optimizer."""

    module: nn.Module
    inputs: Tensor
    optimizer: Callable[[Any], Optimizer]


class _Pointwise(nn.Module):
    """Chains of elementwise work that keep one tensor per layer for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns as many numbers as it gets."""
        for _ in range(_LAYERS):
            x = torch.relu(x * 0.5 + x)
        return x


class _Weights(nn.Module):
    """Weights that are hardly used, for an optimizer."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(size) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """One number."""
        total = x.sum()
        for weight in self.weights:
            total = total + weight.sum()
        return total


def host_seconds(speed: Speed, seconds: float) -> dict[str, float]:
    """Overhead of an operation besides its kernel, by phase.

    Args:
        speed: of kernels.
        seconds: to spend.
    """
    layers = [part for _ in range(10) for part in (nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16))]
    programs = [
        MeasuredProgram(nn.Sequential(*layers), torch.rand(8, 16), partial(SGD, lr=1e-3, momentum=0.9)),
        MeasuredProgram(nn.Sequential(*layers), torch.rand(8, 16), Adam),
        MeasuredProgram(nn.Sequential(*(nn.Tanh() for _ in range(30)), nn.Linear(16, 16)), torch.rand(8, 16), Adam),
    ]
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for features, times in _timed(programs, seconds):
        for phase in PHASES:
            count = sum(operation.count for operation in features.operations if operation.phase == phase)
            kernels, _ = phase_seconds(speed, features, phase)
            found[phase].append(max(0.0, times[phase].seconds - kernels) / count)
    return {phase: statistics.median(values) for phase, values in found.items()}


def coldness(speed: Speed, host_s: dict[str, float], cache_bytes: int, seconds: float) -> dict[str, float]:
    """How far operations are between warm and cold, by phase, in steps that keep about as much alive as caches hold.

    The median over several sizes, since each is a small difference of large times.
    """
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    numbers = [int(level * cache_bytes / 4) for level in _LEVELS]
    chains = [
        MeasuredProgram(_Pointwise(), torch.rand(n // (_LAYERS + 3)).requires_grad_(), _no_weights) for n in numbers
    ]
    # An optimizer of this kind keeps four numbers per weight: the weight, its gradient and two states.
    stores = [MeasuredProgram(_Weights(6, n // 24), torch.rand(8), Adam) for n in numbers]
    passes: list[tuple[Phase, ...]] = [("forward", "backward") for _ in chains]
    updates: list[tuple[Phase, ...]] = [("optimizer",) for _ in stores]
    programs = chains + stores
    for wanted, (features, times) in zip(passes + updates, _timed(programs, seconds), strict=True):
        for phase in wanted:
            warm, cold = phase_seconds(speed, features, phase)
            count = sum(operation.count for operation in features.operations if operation.phase == phase)
            rest = times[phase].seconds - count * host_s[phase] - warm
            share = min(1.0, max(0.0, rest / max(cold - warm, 1e-9)))
            found[phase].append(share)
    return {phase: statistics.median(shares) for phase, shares in found.items()}


def phase_seconds(speed: Speed, features: StepFeatures, phase: Phase) -> tuple[float, float]:
    """Time of all kernels of a phase: with warm tensors, and with cold ones."""
    warm = cold = 0.0
    for operation in features.operations:
        if operation.phase == phase:
            found = speed.of(placed(operation))
            warm += operation.count * found.warm_s
            cold += operation.count * found.cold_s
    return warm, cold


def _no_weights(_: Any) -> Optimizer:
    return SGD([nn.Parameter(torch.zeros(1))], lr=0.0)


def _timed(programs: Sequence[MeasuredProgram], seconds: float) -> Iterator[tuple[StepFeatures, dict[str, Times]]]:
    """Features and times by phase of each program, measured in rotation."""
    steps = [_Step(program) for program in programs]
    for step in steps:
        for _ in range(3):
            step.run(discard=True)
    end = time.perf_counter() + seconds
    turns = 0
    while time.perf_counter() < end or turns < 3:
        for step in steps:
            for n in range(4):
                step.run(discard=n == 0)
        turns += 1
    for step in steps:
        yield step.features(), step.times


class _Step:
    """A program's step, timed by phase."""

    def __init__(self, program: MeasuredProgram) -> None:
        self._program = program
        self._optimizer = program.optimizer(list(program.module.parameters()))
        self.times = {phase: Times() for phase in PHASES}

    def features(self) -> StepFeatures:
        """Features of the step."""
        made = self._program.optimizer if next(self._program.module.parameters(), None) is not None else None
        return characterise(self._program.module, self._program.inputs, optimizer=made, target="cpu")

    def run(self, *, discard: bool) -> None:
        """Runs a step; its times are not kept if ``discard``."""
        loss: list[Tensor] = []
        times = {phase: Times() for phase in PHASES} if discard else self.times

        def forward() -> None:
            loss.append(self._program.module(self._program.inputs).sum())

        def update() -> None:
            self._optimizer.step()
            self._optimizer.zero_grad()

        timed(times["forward"], forward)
        timed(times["backward"], lambda: loss[0].backward())
        timed(times["optimizer"], update)
        if self._program.inputs.grad is not None:
            self._program.inputs.grad = None
