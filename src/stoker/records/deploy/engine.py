"""What is known of a model on an engine before any tool has run: cycles by layer, room taken, the cost of a change."""

from __future__ import annotations

import msgspec


class EngineLayer(msgspec.Struct, frozen=True, kw_only=True):
    """What computes one value."""

    layer: str
    kind: str
    instructions: int
    cycles: int
    """Cycles of a sample, borders and copies included."""
    products: int
    """Weights times numbers, padding included."""
    lanes_frac: float
    """Products by those that its multipliers could form in its cycles: the array's, or a depthwise layer's lanes."""


class EngineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model on an engine."""

    folder: str
    lanes: int
    multipliers: int
    """In the array and the lanes, and two in each requantiser."""
    layers: tuple[EngineLayer, ...]
    cycles: int
    """From a sample's first word to the next sample's."""
    memories: dict[str, tuple[int, int]]
    """Words that the model takes, and those that are there for one model."""
    bytes: int
    """What the model is on the bus."""
    update_cycles: int
    """What loading another model of this size takes, while this one answers."""
