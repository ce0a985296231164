"""Which tables each place of an integer input is a row number of: a matrix of categorical columns has one a column."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.core.errors import ModelImportError
from stoker.deploy.floating import operations as fl

Places = NDArray[np.int64]
_NONE: Places = np.zeros(0, np.int64)
_COMPUTED = (
    "row numbers must be those of an input, as they are, moved, or a matrix of them with an offset for each column, "
    "or whole numbers that are computed element by element or as running sums, and these are computed otherwise; do "
    "other arithmetic with row numbers in the loader"
)
_MOVES = (fl.FloatReshape, fl.FloatPermute, fl.FloatSlice)


@dataclass(frozen=True, slots=True, eq=False)
class RowsRead:
    """What an integer input of a model may hold, by place of a sample.

    Attributes:
        rows: of the smallest table that reads a place; where something else does, such as a mask, at most the numbers
            that the input can hold; 0 where nothing does.
        tables: place of that lookup among the graph's operations; -1 where no table reads a place.
        bits: of the input's numbers, alike for inputs that are joined.
        joined: whether they are concatenated with those of another input.
    """

    rows: Places
    tables: Places
    bits: int
    joined: bool


def rows_read(graph: fl.FloatGraph) -> dict[str, RowsRead]:
    """What each integer input may hold, by name.

    Raises:
        ModelImportError: a table's row numbers are not those of an input; fields: where.
    """
    inputs = [each for each in graph.inputs if each.whole]
    places: dict[str, Places] = {}
    total = 0
    counts = np.concatenate([np.full(int(np.prod(each.shape[1:])), max(each.count, 1)) for each in inputs] or [_NONE])
    for each in inputs:
        count = int(np.prod(each.shape[1:]))
        places[each.name] = np.arange(total, total + count).reshape(1, *each.shape[1:])
        total += count
    rows, tables, computed = np.zeros(total, np.int64), np.full(total, -1), np.zeros(total, bool)
    whole: set[str] = set()
    """What is computed of whole numbers, exactly: a table that reads it is proven long enough by its range."""
    meeting: list[Places] = []
    """Places of inputs that are concatenated."""

    def otherwise(names: Iterable[str]) -> None:
        """Something but tables reads values."""
        for name in names:
            if name in places:
                found = places[name].ravel()
                computed[found] = True
                found = found[tables[found] < 0]
                rows[found] = counts[found]

    for at, each in enumerate(graph.operations):
        if isinstance(each, fl.FloatEmbedding):
            if each.sources[0] in whole:
                continue
            if each.sources[0] not in places:
                raise ModelImportError(f"{each.where}: `{each.name}`: {_COMPUTED}".removeprefix(": "), where=each.where)
            found = places[each.sources[0]].ravel()
            fewer = found[(tables[found] < 0) | (rows[found] > len(each.table))]
            rows[fewer], tables[fewer] = len(each.table), at
        elif (moved := _moved(each, places)) is not None:
            places[each.name] = moved
            if isinstance(each, fl.FloatConcat):
                meeting.append(moved.ravel())
        else:
            otherwise(each.sources)
            if _is_whole(each, {*whole, *places}, graph.grids):
                whole.add(each.name)
    otherwise((*graph.outputs.values(), *graph.folded))
    # A table may have more rows than what else reads a place has numbers: larger ones must be refused, not computed.
    rows = np.where(computed, np.minimum(rows, counts), rows)
    return {
        each.name: RowsRead(
            rows[own].reshape(each.shape[1:]),
            tables[own].reshape(each.shape[1:]),
            _bits(met, rows),
            len(met) > len(own),
        )
        for each in inputs
        for own in [places[each.name].ravel()]
        for met in [_met(own, meeting)]
    }


def _moved(each: fl.FloatOperation, places: Mapping[str, Places]) -> Places | None:
    """Where an operation puts the places that it reads; None of one that computes, or reads something else."""
    if not each.sources or any(name not in places for name in each.sources):
        return None
    sources = [places[name] for name in each.sources]
    match each:
        case fl.FloatReshape():
            return sources[0].reshape([abs(size) for size in each.shape])
        case fl.FloatPermute():
            return sources[0].transpose(each.order)
        case fl.FloatSlice():
            return sources[0][(slice(None),) * each.axis + (slice(each.start, each.stop, each.step),)]
        case fl.FloatConcat():
            return np.concatenate(sources, axis=each.axis)
        case _:
            return None


def _is_whole(each: fl.FloatOperation, whole: Collection[str], grids: Mapping[str, fl.GivenGrid]) -> bool:
    """Whether an operation's results are whole numbers from 0 on, as they are: not rounded to a grid of samples."""
    grid = grids.get(each.name)
    exact = grid is not None and (grid.scale, grid.zero_point) == (1.0, 0)
    match each:
        case fl.FloatLookup() | fl.FloatRunningSum():
            return True
        case fl.FloatConstant() | fl.FloatProduct():
            return exact and all(name in whole for name in each.sources)
        case fl.FloatConcat():
            return all(name in whole for name in each.sources) and (exact or len({*each.sources}) == 1)
        case _:
            return isinstance(each, _MOVES) and each.sources[0] in whole


def _met(own: Places, meeting: list[Places]) -> Places:
    """Places of an input and of those that it is joined to."""
    for _ in meeting:  # one that is met may meet others
        for each in meeting:
            if np.isin(each, own).any():
                own = np.union1d(own, each)
    return own


def _bits(met: Places, rows: Places) -> int:
    return max(1, (int(rows[met].max(initial=1)) - 1).bit_length())
