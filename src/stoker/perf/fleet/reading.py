"""Tables of jobs as files: CSV in pieces, Parquet where pyarrow is installed, known traces by their header."""

from __future__ import annotations

import csv
import importlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker.core.errors import JobTableError
from stoker.perf.equations import LABELS, CodeArray, FloatArray
from stoker.perf.fleet import traces
from stoker.perf.fleet.jobs import (
    ARCHITECTURE,
    COLUMN_NAMES,
    JOB,
    NUMBERS,
    REQUIRED,
    Fleet,
    first_wrong,
    fleet_of,
    read_architecture,
    refusal,
)

_PIECE = 50_000
"""Rows held as text at a time."""
Cells = Sequence[str]


class _Table(NamedTuple):
    """Columns of a file, still as text."""

    path: Path
    head: list[str]
    pieces: Iterator[list[list[str]]]


def read_fleet(path: Path) -> Fleet:
    """The jobs of a file: ``.parquet`` as such, anything else as CSV.

    Raises:
        JobTableError: it cannot be read, a column is missing, or a value breaks its column's rule.
    """
    try:
        if path.suffix.lower() == ".parquet":
            return _read_parquet(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read_csv(path, csv.reader(file))
    except OSError as error:
        raise JobTableError(f"`{path}` must be a file that can be read: {error.strerror}", path=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise JobTableError(f"`{path}` must be CSV in UTF-8, got something else: {error}", path=str(path)) from None


def _read_csv(path: Path, rows: Iterator[list[str]]) -> Fleet:
    head = [cell.strip() for cell in next(rows, list[str]())]
    filled = (row for row in rows if row)
    pieces = iter(lambda: list(itertools.islice(filled, _PIECE)), [])
    if (read_trace := traces.reader_of(head)) is not None:
        return read_trace(path.name, _columns_as_text(_Table(path, head, pieces)))
    _check_head(path.name, head)
    return _read_jobs(_Table(path, head, pieces))


def _check_head(name: str, head: Sequence[str]) -> None:
    twice = next((each for number, each in enumerate(head) if each in head[:number]), None)
    if twice is not None:
        raise JobTableError(f"`{name}` must have each column once, got `{twice}` twice", path=name, column=twice)
    missing = [each for each in REQUIRED if each not in head]
    if missing:
        raise JobTableError(
            f"`{missing[0]}` must be a column of `{name}`, got {', '.join(head)[:200] or 'an empty file'}; "
            "the columns: stoker perf fleet --schema",
            path=name,
            column=missing[0],
        )


def _read_jobs(table: _Table) -> Fleet:
    place = {name: table.head.index(name) for name in COLUMN_NAMES if name in table.head}
    names: list[str] | None = [] if JOB in place else None
    kept: dict[str, list[FloatArray]] = {column.name: [] for column in NUMBERS if column.name in place}
    codes: list[CodeArray] = []
    begun = 0
    for rows in table.pieces:
        cells = _transposed(table, rows, begun)
        if names is not None:
            names += cells[place[JOB]]
        numbers = {name: _numbers(table, name, cells[place[name]], begun) for name in kept}
        code = _codes(cells[place[ARCHITECTURE]])
        if wrong := first_wrong(code, numbers):
            at, column, rule = wrong
            raise refusal(table.path.name, _line(table.path, begun + at), column, cells[place[column]][at], rule)
        codes.append(code)
        for name, values in numbers.items():
            kept[name].append(values)
        begun += len(rows)
    if not begun:
        raise JobTableError(f"`{table.path.name}` must have at least one job, got none", path=table.path.name)
    joined = {name: np.concatenate(values) for name, values in kept.items()}
    return fleet_of(table.path.name, np.concatenate(codes), joined, names)


def _transposed(table: _Table, rows: list[list[str]], begun: int) -> list[Cells]:
    """Columns of some rows, which must be of equal length."""
    wrong = next((number for number, row in enumerate(rows) if len(row) != len(table.head)), None)
    if wrong is not None:
        where = _line(table.path, begun + wrong)
        raise JobTableError(
            f"{where} of `{table.path.name}` must have {len(table.head)} cells, as the first line has, "
            f"got {len(rows[wrong])}",
            path=table.path.name,
            row=where,
        )
    return list(zip(*rows, strict=True))


def _codes(cells: Cells) -> CodeArray:
    known = {cell: read_architecture(cell) for cell in set(cells)}
    return np.array([known[cell] for cell in cells], dtype=np.int8)


def _numbers(table: _Table, name: str, cells: Cells, begun: int) -> FloatArray:
    """A column's numbers; an empty cell of an optional column is NaN."""
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        return np.array([_number(table, name, cell, begun + at) for at, cell in enumerate(cells)], dtype=np.float64)


def _number(table: _Table, name: str, cell: str, row: int) -> float:
    column = next(each for each in NUMBERS if each.name == name)
    if not cell.strip() and not column.required:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        raise refusal(table.path.name, _line(table.path, row), name, cell, column.rule) from None


def _line(path: Path, row: int) -> str:
    """The line of the file on which a row ends, as editors count: cells may hold line breaks, lines may be blank."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        next(rows)
        next(itertools.islice((each for each in rows if each), row, None))
        return f"line {rows.line_num}"


def _columns_as_text(table: _Table) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in table.head}
    begun = 0
    for rows in table.pieces:
        for name, cells in zip(table.head, _transposed(table, rows, begun), strict=True):
            found[name] += cells
        begun += len(rows)
    return found


def _read_parquet(path: Path) -> Fleet:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise JobTableError(
            f"`{path.name}` needs pyarrow, which is not installed: pip install pyarrow, or write the table as CSV",
            path=str(path),
        ) from None
    try:
        table: Any = parquet.read_table(path)
    except ValueError as error:  # of pyarrow's own kinds
        raise JobTableError(f"`{path.name}` must be a Parquet file: {error}", path=str(path)) from None
    _check_head(path.name, table.column_names)
    numbers = {
        each.name: _parquet_numbers(path, table, each.name) for each in NUMBERS if each.name in table.column_names
    }
    architectures = [str(cell) for cell in table[ARCHITECTURE].to_pylist()]
    codes = _codes(architectures)
    if not len(codes):
        raise JobTableError(f"`{path.name}` must have at least one job, got none", path=path.name)
    if wrong := first_wrong(codes, numbers):
        at, column, rule = wrong
        raise refusal(path.name, f"row {at + 1}", column, table[column][at].as_py(), rule)
    names = [str(cell) for cell in table[JOB].to_pylist()] if JOB in table.column_names else None
    return fleet_of(path.name, codes, numbers, names)


def _parquet_numbers(path: Path, table: Any, name: str) -> FloatArray:
    try:
        cells = table[name].cast("float64").to_numpy()
    except ValueError:  # of pyarrow's own kinds
        kind = str(table[name].type)
        raise JobTableError(
            f"`{name}` of `{path.name}` must be a column of numbers, got {kind}", path=path.name, column=name
        ) from None
    return np.asarray(cells, dtype=np.float64)


def write_csv(fleet: Fleet, path: Path) -> None:
    """Writes a fleet of features as a table that :func:`read_fleet` reads back unchanged.

    Raises:
        JobTableError: the file cannot be written.
    """
    features = fleet.features
    assert features is not None, "only fleets with features are tables of them"
    dense = fleet.dense_bytes
    sizes = {} if dense is None or fleet.weight_bytes is None else {
        "dense_weight_bytes": dense, "embedding_weight_bytes": fleet.weight_bytes - dense
    }  # fmt: skip
    columns = {
        "num_gpus": features.num_gpus,
        "flops": features.flops,
        "memory_bytes": features.memory_bytes,
        "input_bytes": features.input_bytes,
        "traffic_bytes": features.traffic_bytes,
        **sizes,
    }
    texts = [[f"{value:.7g}" for value in values.tolist()] for values in columns.values()]
    codes: list[int] = fleet.group.tolist()
    architectures = (LABELS[code] for code in codes)
    rows = zip(
        (fleet.job_name(place) for place in range(len(fleet))),
        architectures,
        *texts,
        strict=True,
    )
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([JOB, ARCHITECTURE, *columns])
            writer.writerows(rows)
    except OSError as error:
        raise JobTableError(f"`{path}` must be a file that can be written: {error.strerror}", path=str(path)) from None
