"""One table for all columns of a matrix, whose row numbers get the column's offset, as a table for each column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stoker.deploy.floating import operations as fl


def with_column_tables(graph: fl.FloatGraph) -> fl.FloatGraph:
    """The graph with a table for each column where the numbers of a matrix are rows of one table from an offset on.

    A column has the rows from its offset up to the next larger one: its numbers are bounded as those of separate tables
    are. Lookups whose row numbers are computed in another way stay as they are.
    """
    by_name = {each.name: each for each in graph.operations}
    uses = Counter([name for each in graph.operations for name in each.sources] + [*graph.outputs.values()])
    made: list[fl.FloatOperation] = []
    shapes = dict(graph.shapes)
    dropped: set[str] = set()
    for each in graph.operations:
        added = by_name.get(each.sources[0]) if isinstance(each, fl.FloatEmbedding) and not each.bag else None
        found = None if added is None else _offsets(added, by_name, graph.shapes)
        if not isinstance(each, fl.FloatEmbedding) or added is None or found is None:
            made.append(each)
            continue
        source, offsets = found
        made += _by_column(each, source, offsets, shapes)
        if uses[added.name] == 1:
            dropped |= {added.name, *(name for name in added.sources if name != source and uses[name] == 1)}
    return replace(graph, operations=tuple(each for each in made if each.name not in dropped), shapes=shapes)


def _offsets(
    added: fl.FloatOperation, by_name: Mapping[str, fl.FloatOperation], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[str, list[int]] | None:
    """What an addition adds to each column of a matrix, or to all of a single column: the matrix, whole numbers.

    Row numbers without an axis of columns are a single one.
    """
    shape, source = shapes[added.name], added.sources[0] if added.sources else ""
    if isinstance(added, fl.FloatPointwise) and added.function == "linear" and added.arguments[0] == 1:
        array = np.array(added.arguments[1])
    elif isinstance(added, fl.FloatSum) and added.factors == (1.0, 1.0):
        constants = {name: by_name.get(name) for name in added.sources}
        found = [(name, each.array) for name, each in constants.items() if isinstance(each, fl.FloatConstant)]
        others = [name for name in added.sources if not isinstance(constants[name], fl.FloatConstant)]
        if len(found) != 1 or len(others) != 1:
            return None
        source, array = others[0], found[0][1]
    else:
        return None
    if len(shape) not in (1, 2) or shapes[source] != shape or (array < 0).any() or (array != np.rint(array)).any():
        return None
    return source, np.broadcast_to(array, (1, *shape[1:])).reshape(-1).astype(int).tolist()


def _by_column(
    each: fl.FloatEmbedding, source: str, offsets: list[int], shapes: dict[str, tuple[int, ...]]
) -> list[fl.FloatOperation]:
    """A lookup as one for each column, joined; a single column's has the lookup's name."""
    ends = sorted({*offsets, len(each.table)})
    parts: list[str] = []
    made: list[fl.FloatOperation] = []
    several = len(offsets) > 1
    for at, start in enumerate(offsets):
        table = each.table[start : ends[ends.index(start) + 1] if start < len(each.table) else start]
        if not len(table):
            return [each]  # no row is left: refused as other computed row numbers are
        rows, name = source, f"{each.name}.{at}" if several else each.name
        if several:
            rows = f"{each.name}.rows{at}"
            made.append(
                fl.FloatSlice(
                    name=rows, sources=(source,), layer=each.layer, where=each.where, axis=1, start=at, stop=at + 1
                )
            )
            shapes[rows] = (shapes[source][0], 1)
        made.append(replace(each, name=name, sources=(rows,), table=table))
        shapes[name] = (*shapes[rows], each.table.shape[1])
        parts.append(name)
    if several:
        made.append(fl.FloatConcat(name=each.name, sources=tuple(parts), layer=each.layer, where=each.where, axis=1))
    return made
