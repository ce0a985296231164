"""Scales and zero points from what was observed: three ways to choose a range, and the widths asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stoker.deploy.ir.values import type_range
from stoker.deploy.lowering.observation import Observed, Real

RangeRule = Literal["minmax", "percentile", "squares"]
RANGE_RULES: tuple[RangeRule, ...] = ("minmax", "percentile", "squares")
_PERCENT = 99.95
"""Share of the numbers inside the range; the rest is cut."""
_CUTS = np.linspace(1.0, 0.3, 36)
"""Shares of the whole range that are tried for the least squared error."""
_LEAST = 1e-30
"""Width below which a range is as good as none; a constant 0 has a scale too, for a range of 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The numbers that a value can be: ``scale * (q - zero_point)``."""

    bits: int
    signed: bool
    scale: float
    zero_point: int

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the largest q."""
        return type_range(self.bits, self.signed)

    def steps(self, x: Real) -> Real:
        """Real numbers as q."""
        return np.clip(np.rint(x / self.scale) + self.zero_point, *self.ends)

    def near(self, x: Real) -> Real:
        """Real numbers rounded to the grid."""
        return (self.steps(x) - self.zero_point) * self.scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bits of weights and of results.

    Attributes:
        weights: of all layers that are not named.
        activations: of all results that are not named.
        weights_by_layer: by an operation's name or its module's path.
        activations_by_layer: of its result.

    Raises:
        ValueError: weights are not 2 to 8 bits, or activations not 4 to 8.
    """

    weights: int = 8
    activations: int = 8
    weights_by_layer: Mapping[str, int] = field(default_factory=lambda: {})
    activations_by_layer: Mapping[str, int] = field(default_factory=lambda: {})

    def __post_init__(self) -> None:
        for name, least, given in (
            ("weights", 2, (self.weights, *self.weights_by_layer.values())),
            ("activations", 4, (self.activations, *self.activations_by_layer.values())),
        ):
            for bits in given:
                if not least <= bits <= 8:
                    raise ValueError(f"`{name}` must have {least} to 8 bits, got {bits}")

    def of_weights(self, name: str, layer: str) -> int:
        """Bits of a layer's weights."""
        return self.weights_by_layer.get(name, self.weights_by_layer.get(layer, self.weights))

    def of_result(self, name: str, layer: str) -> int:
        """Bits of an operation's result."""
        return self.activations_by_layer.get(name, self.activations_by_layer.get(layer, self.activations))

    def has_result(self, name: str, layer: str) -> bool:
        """Whether an operation's result is named."""
        return name in self.activations_by_layer or layer in self.activations_by_layer


def grid_of(low: float, high: float, bits: int) -> Grid:
    """The grid of a range, which is widened to hold 0: unsigned where nothing is negative."""
    low, high = float(min(low, 0.0)), float(max(high, 0.0))
    if high - low < _LEAST:
        high = low + 1.0
    least, _ = type_range(bits, low < 0)
    scale = (high - low) / ((1 << bits) - 1)
    return Grid(bits=bits, signed=low < 0, scale=scale, zero_point=round(least - low / scale))


def observed_grid(seen: Observed, bits: int, rule: RangeRule) -> Grid:
    """The grid of a value by a rule."""
    match rule:
        case "minmax":
            return grid_of(seen.low, seen.high, bits)
        case "percentile":
            low, high = np.percentile(seen.sample, [100 - _PERCENT, _PERCENT])
            return grid_of(min(float(low), 0.0), max(float(high), 0.0), bits)
        case "squares":
            tried = [grid_of(seen.low * cut, seen.high * cut, bits) for cut in _CUTS]
            errors = [float(np.square(grid.near(seen.sample) - seen.sample).mean()) for grid in tried]
            return tried[int(np.argmin(errors))]
