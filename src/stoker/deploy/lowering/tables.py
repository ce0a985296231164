"""Tables of embeddings as whole numbers. They are constant: their range is known, rows that no sample met included."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stoker.deploy.floating import operations as fl
from stoker.deploy.ir import operations as op
from stoker.deploy.lowering.grids import Grid, RangeRule, grid_of, observed_grid
from stoker.deploy.lowering.layout import Laid, size_of
from stoker.deploy.lowering.observation import Observed
from stoker.deploy.lowering.writing import Writer

_SAMPLE = 1 << 15
"""Numbers of a table that its grid is chosen by, where that is the one of least squared error."""
_MOVES = (fl.FloatReshape, fl.FloatPermute, fl.FloatSlice, fl.FloatConcat)


def table_grid(table: fl.Real, bits: int, rule: RangeRule) -> Grid:
    """The grid of a table: it holds every number, or has the least squared error of all of them by that rule."""
    low, high = float(table.min()), float(table.max())
    if rule != "squares":
        return grid_of(low, high, bits)
    flat = table.ravel()
    sample = flat if flat.size <= _SAMPLE else np.random.default_rng(0).choice(flat, _SAMPLE, replace=False)
    return observed_grid(Observed(low=low, high=high, sample=sample), bits, rule)


def write_rows(to: Writer, each: fl.FloatEmbedding, source: str, grid: Grid) -> str:
    """A lookup, whose results are the table's numbers; its name."""
    name = to.value(each.name, (*to.values[source].shape, each.table.shape[1]), grid)
    table = to.constant(f"{name}.table", grid.steps(each.table))
    return to.write(op.Embedding(source=source, output=name, table=table))


def write_bag(to: Writer, each: fl.FloatEmbedding, source: str, laid: Laid, bits: int, grid: Grid) -> str:
    """Sums of rows, or their means; the result's name."""
    scale = float(np.abs(each.table).max()) / ((1 << (bits - 1)) - 1) or 1.0
    count = size_of(laid.axes[-1]) if each.bag == "mean" else 1
    name = to.value(each.name, (*to.values[source].shape[:-1], each.table.shape[1]), grid)
    return to.write(
        op.EmbeddingBag(
            source=source, output=name, table_bits=bits,
            table=to.constant(f"{name}.table", np.rint(each.table / scale)),
            requantiser=to.requantiser(name, np.array([scale / grid.scale / count]), grid),
        )
    )  # fmt: skip


def table_ends(graph: fl.FloatGraph) -> dict[str, tuple[float, float]]:
    """The least and the largest number of what is rows of tables, as they are or moved; by name."""
    found: dict[str, tuple[float, float]] = {}
    for each in graph.operations:
        if isinstance(each, fl.FloatEmbedding) and not each.bag:
            found[each.name] = float(each.table.min()), float(each.table.max())
        elif isinstance(each, _MOVES) and all(name in found for name in each.sources):
            ends = [found[name] for name in each.sources]
            found[each.name] = min(end[0] for end in ends), max(end[1] for end in ends)
    return found


def with_tables(seen: Observed, sources: tuple[str, ...], ends: Mapping[str, tuple[float, float]]) -> Observed:
    """What was seen of values that are joined, with all rows of the tables among them."""
    known = [ends[name] for name in sources if name in ends]
    low = min((end[0] for end in known), default=seen.low)
    high = max((end[1] for end in known), default=seen.high)
    return Observed(low=min(low, seen.low), high=max(high, seen.high), sample=seen.sample, patches=seen.patches)
