"""Tables by several whole numbers at once, and running sums of them, of operations that there are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stoker.deploy.floating import operations as fl
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.shapes import broadcast
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer

_ONES_BITS = 2
"""Width of weights that are 0 or 1: they have a sign."""


def write_lookup(to: Writer, each: fl.FloatLookup, sources: Sequence[str], grid: Grid) -> str:
    """A table by one value; by several, one with a number for each combination of theirs. The result's name.

    Args:
        to: the graph.
        each: whose table it is.
        sources: values of whole numbers from 0 on, of one rank.
        grid: of the result.
    """
    source, shape = sources[0], broadcast(*(to.values[name].shape for name in sources))
    if len(sources) > 1:
        counts, high = each.table.shape, each.table.size - 1
        own = Grid(bits=high.bit_length(), signed=False, scale=1.0, zero_point=0)
        source = to.value(f"{each.name}.index", shape, own)
        factors = tuple(math.prod(counts[at + 1 :]) for at in range(len(counts)))
        by = op.Requantiser(multiplier=None, shift=0, zero_point=0, low=0, high=high)
        to.write(op.Add(sources=tuple(sources), output=source, multipliers=factors, requantiser=by))
    entries = np.zeros(1 << to.values[source].bits, np.int64)
    known = each.table.ravel()[: len(entries)]  # a part of an input may hold fewer numbers than the whole
    entries[: len(known)] = known
    name = to.value(each.name, shape, grid)
    return to.write(op.Table(source=source, output=name, table=to.constant(f"{name}.table", entries)))


def write_running_sum(to: Writer, each: fl.FloatRunningSum, source: str, grid: Grid) -> str:
    """Sums up to each place of the last axis: a layer with ones up to the diagonal, exact. The result's name.

    Args:
        to: the graph.
        each: the sum.
        source: a value of whole numbers from 0 on.
        grid: of the result, which holds the largest sum.
    """
    shape = to.values[source].shape
    name = to.value(each.name, shape, grid)
    weight, bias = np.tril(np.ones((shape[-1], shape[-1]), np.int64)), np.zeros(shape[-1], np.int64)
    by = op.Requantiser(multiplier=None, shift=0, zero_point=0, low=0, high=grid.ends[1])
    return to.write(
        op.Linear(
            source=source, output=name, weight=to.constant(f"{name}.weight", weight), weight_bits=_ONES_BITS,
            bias=to.constant(f"{name}.bias", bias), requantiser=by,
        )
    )  # fmt: skip
