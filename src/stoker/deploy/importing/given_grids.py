# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Scales that a graph brings along: quantise and dequantise nodes, as PT2E and torchao write them.

A pair of nodes says on which whole numbers a value lies; it becomes the value's grid, and no operation. Weights that
come of a dequantise node keep their steps by output channel. What has no such node gets its scale from samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import fx

from stoker.deploy.floating.operations import GivenGrid, GivenWeights
from stoker.deploy.importing.matching import Handler, Matcher, arguments

_MOST_BITS = 16
_MOST_WEIGHT_BITS = 8
_PER_TENSOR, _PER_CHANNEL = "quantized_decomposed.dequantize_per_tensor", "quantized_decomposed.dequantize_per_channel"


def given_weights(at: Matcher, node: fx.Node, weight: Any) -> GivenWeights | None:
    """Steps of a layer's weights, by output channel, where they come of a dequantise node.

    Raises:
        ModelImportError: they have a zero point, more than 8 bits, or steps along another axis.
    """
    target = str(weight.target) if isinstance(weight, fx.Node) else ""
    if not target.startswith((_PER_TENSOR, _PER_CHANNEL)):
        return None
    given = arguments(weight)
    channels = len(at.weight(node, weight, "weight"))
    scales = at.weight(weight, given.get("scales", given.get("scale")), "scales")
    points = given.get("zero_points", given.get("zero_point"))
    if points is not None and at.weight(weight, points, "zero_points").any():
        raise at.refused(weight, "weights must have the zero point 0")
    if target.startswith(_PER_CHANNEL) and int(given["axis"]) != 0:
        raise at.refused(weight, f"weights must have their scales along axis 0, got {given['axis']}")
    low, high = _ends(at, weight, given)
    bits = 1 + max(max(high, 0).bit_length(), max(-low - 1, 0).bit_length())
    if bits > _MOST_WEIGHT_BITS:
        raise at.refused(weight, f"weights must have at most {_MOST_WEIGHT_BITS} bits, got {low} to {high}")
    return GivenWeights(scales=np.broadcast_to(scales, (channels,)).copy(), bits=bits)


def _quantise(at: Matcher, node: fx.Node) -> None:
    at.on_grid(node, at.value(node, arguments(node)["input"]), _grid(at, node))


def _dequantise(at: Matcher, node: fx.Node) -> None:
    source = at.value(node, arguments(node)["input"])
    grid = _grid(at, node)
    if at.grids.get(source) != grid:
        raise at.refused(node, f"a value must be dequantised as it was quantised, {at.grids.get(source)}, got {grid}")
    at.alias(node, source)


def _grid(at: Matcher, node: fx.Node) -> GivenGrid:
    """The grid that a node's arguments state."""
    given = arguments(node)
    low, high = _ends(at, node, given)
    bits = (high - low).bit_length()
    if (low, high) not in ((0, (1 << bits) - 1), (-(1 << bits) // 2, (1 << bits) // 2 - 1)) or bits > _MOST_BITS:
        raise at.refused(node, f"a value must use all numbers of 1 to {_MOST_BITS} bits, got {low} to {high}")
    scale, point = (at.weight(node, given[name], name) for name in ("scale", "zero_point"))
    return GivenGrid(bits=bits, signed=low < 0, scale=float(scale), zero_point=int(point))


def _ends(at: Matcher, node: fx.Node, given: dict[str, Any]) -> tuple[int, int]:
    low, high = (int(at.weight(node, given[name], name)) for name in ("quant_min", "quant_max"))
    return low, high


GIVEN: dict[str, Handler] = {
    **dict.fromkeys((f"quantize_per_tensor{form}" for form in ("", ".tensor", ".tensor2")), _quantise),
    **dict.fromkeys((f"dequantize_per_tensor{form}" for form in ("", ".tensor", ".tensor2")), _dequantise),
}
"""Handlers of values that an input reaches; weights are constants, and folded."""
