"""Finds the repeated blocks of a model among its layers: what sharding gathers together, and what can be split.

A block is what a module's path holds up to its first number: ``encoder.layer.3`` of ``encoder.layer.3.attention``.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from stoker.perf.features.records import Layer, StepFeatures

_LEAST_PRODUCTS = 4
"""Matrix products of a block of attention and MLP besides the attention's own: into it, out of it, two of the MLP."""


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


@functools.cache
def block_of(module: str) -> str:
    """Path of the block that a module belongs to; empty for none."""
    parts = module.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


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


_KEPT = 32
_known: OrderedDict[int, tuple[StepFeatures, frozenset[str]]] = OrderedDict()
"""Blocks of the last features: planning asks for the same ones many times."""


def transformer_blocks(features: StepFeatures) -> frozenset[str]:
    """Paths of blocks with an attention, as one kernel or written out, and the products around it and of an MLP."""
    if id(features) not in _known:
        _known[id(features)] = features, _blocks_of(features)
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return _known[id(features)][1]


def _blocks_of(features: StepFeatures) -> frozenset[str]:
    fused: set[str] = set()
    softmax: set[str] = set()
    products: dict[str, int] = {}
    squares: dict[str, int] = {}
    for operation in features.operations:
        path = block_of(operation.module)
        if operation.phase != "forward" or not path:
            continue
        if operation.kind == "attention":
            fused.add(path)
        elif operation.kind == "softmax":
            softmax.add(path)
        elif operation.kind == "matmul":
            found = squares if operation.dims and operation.dims[0] > 1 else products
            found[path] = found.get(path, 0) + operation.count
    written = {path for path in softmax if squares.get(path, 0) >= 2}
    return frozenset(path for path in fused | written if products.get(path, 0) >= _LEAST_PRODUCTS)


def output_bytes(layers: Sequence[Layer], unit: Unit) -> int:
    """What a unit hands to the next: the block's own output, or that of its last layer which gives any."""
    own = [layers[place] for place in range(unit.start, unit.stop)]
    whole = [layer.output_bytes for layer in own if layer.module == unit.path and layer.output_bytes]
    return whole[0] if whole else next((layer.output_bytes for layer in reversed(own) if layer.output_bytes), 0)
