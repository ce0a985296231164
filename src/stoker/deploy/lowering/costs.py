"""What narrower widths save: bits that are kept, and bits that are multiplied. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from stoker.deploy.ir import operations as op
from stoker.deploy.lowering.lowering import Lowered

Cost = Callable[[Lowered], float]
Saved = Literal["memory", "multipliers"]


def memory(lowered: Lowered) -> float:
    """Bits of all weights."""
    return float(sum(lowered.weight_bits.values()))


def multipliers(lowered: Lowered) -> float:
    """Bit operations of a sample: products of layers, each bits of one factor times bits of the other.

    Source: Baskin et al., "UNIQ: Uniform Noise Injection for Non-Uniform Quantization of Neural Networks", 2018,
    section 4.2; additions are left out.
    """
    graph, total = lowered.graph, 0
    for each in graph.operations:
        if isinstance(each, op.Linear | op.Convolution):
            # A linear layer's weight is (outputs, inputs), a convolution's (outputs, height, width, inputs a group).
            products = graph.values[each.output].elements * math.prod(graph.constants[each.weight].shape[1:])
            total += products * each.weight_bits * graph.values[each.source].bits
        elif isinstance(each, op.MatMul):
            first, second = (graph.values[name] for name in each.sources)
            total += graph.values[each.output].elements * first.shape[-1] * first.bits * second.bits
    return float(total)


COSTS: dict[Saved, Cost] = {"memory": memory, "multipliers": multipliers}
