"""Joins operations on real numbers that become one on integers, and finds what only leaves the model."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from stoker.deploy.floating.operations import (
    FloatConvolution,
    FloatGraph,
    FloatLinear,
    FloatOperation,
    FloatPermute,
    FloatReshape,
    FloatScale,
)


def folded(graph: FloatGraph) -> FloatGraph:
    """The graph with each batch norm inside the layer before it, where nothing else reads that layer.

    The joined operation has the batch norm's name, so what was observed of it stays right.
    """
    uses = Counter([name for each in graph.operations for name in each.sources] + [*graph.outputs.values()])
    made: dict[str, FloatOperation] = {}
    for each in graph.operations:
        before = made.get(each.sources[0]) if isinstance(each, FloatScale) else None
        if isinstance(each, FloatScale) and _takes(before, graph) and uses[each.sources[0]] == 1:
            assert isinstance(before, (FloatConvolution, FloatLinear))
            del made[before.name]
            weight = before.weight * each.factor.reshape(-1, *(1,) * (before.weight.ndim - 1))
            bias = before.bias * each.factor + each.offset
            made[each.name] = replace(before, name=each.name, weight=weight, bias=bias)
        else:
            made[each.name] = each
    return replace(graph, operations=tuple(made.values()))


def only_leaves(graph: FloatGraph, name: str) -> bool:
    """Whether nothing computes with a value: it is a result of the model, perhaps under another shape."""
    return all(
        isinstance(each, (FloatPermute, FloatReshape)) and only_leaves(graph, each.name)
        for each in graph.operations
        if name in each.sources
    )


def _takes(before: FloatOperation | None, graph: FloatGraph) -> bool:
    """Whether a layer's output channels are those of the batch norm: the last axis of a linear one is not, of three.

    Not if the layer's weights or its result came with their scales.
    """
    if not isinstance(before, (FloatLinear, FloatConvolution)) or before.given or before.name in graph.grids:
        return False
    return isinstance(before, FloatConvolution) or len(graph.shapes[before.name]) == 2
