"""Splits the layers of a model at its repeated blocks: what sharding gathers together, and what can be split.

A block is a module's path up to its first number: ``encoder.layer.3`` of ``encoder.layer.3.attention``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.perf.features.records import Layer, block_of


@dataclass(frozen=True, slots=True)
class Unit:
    """Consecutive layers of one block, or of none.

    Attributes:
        path: of the block; empty for layers outside of blocks.
        start, stop: places of its layers.
    """

    path: str
    start: int
    stop: int


def units_of(layers: Sequence[Layer]) -> tuple[Unit, ...]:
    """The layers, cut where one block ends and another begins."""
    found: list[Unit] = []
    for place, layer in enumerate(layers):
        path = block_of(layer.module)
        if found and found[-1].path == path:
            found[-1] = Unit(path, found[-1].start, place + 1)
        else:
            found.append(Unit(path, place, place + 1))
    return tuple(found)


def paths_of(layers: Sequence[Layer]) -> tuple[str, ...]:
    """Paths of all blocks."""
    return tuple(dict.fromkeys(unit.path for unit in units_of(layers) if unit.path))


def output_bytes(layers: Sequence[Layer], unit: Unit) -> int:
    """Bytes that a unit passes to the next: the block's own output, or that of its last layer that has one."""
    own = [layers[place] for place in range(unit.start, unit.stop)]
    whole = [layer.output_bytes for layer in own if layer.module == unit.path and layer.output_bytes]
    return whole[0] if whole else next((layer.output_bytes for layer in reversed(own) if layer.output_bytes), 0)
