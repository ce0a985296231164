"""Which parts of a Parquet file to prefetch, decided from its footer and the reads so far.

Arrow reads one column chunk after the other through a Python file, with a round trip to the store for each. Once it
reads a column of one row group it will most likely read the same columns of the next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

AHEAD_BYTES = 64 << 20
"""Most bytes to prefetch beyond the current read."""


class Chunk(NamedTuple):
    """A column of a row group.

    Attributes:
        row_group: number of it.
        column: name of the field at the top of its path.
        start: first byte.
        end: byte after the last.
    """

    row_group: int
    column: str
    start: int
    end: int


def chunks_of(metadata: Any) -> list[Chunk]:
    """The column chunks of a file in the order of its row groups.

    Args:
        metadata: a ``pyarrow.parquet.FileMetaData``.
    """
    chunks: list[Chunk] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            start = column.data_page_offset
            if column.has_dictionary_page and column.dictionary_page_offset:
                start = min(start, column.dictionary_page_offset)
            name = column.path_in_schema.partition(".")[0]
            chunks.append(Chunk(number, name, start, start + column.total_compressed_size))
    return chunks


def touched(chunks: Sequence[Chunk], start: int, end: int) -> list[Chunk]:
    """The chunks of which a read takes some bytes.

    Args:
        chunks: of the file.
        start: first byte of the read.
        end: byte after its last.
    """
    return [chunk for chunk in chunks if chunk.start < end and chunk.end > start]


def wanted(
    chunks: Sequence[Chunk], now: Sequence[Chunk], columns: Collection[str], *, most_bytes: int = AHEAD_BYTES
) -> list[Chunk]:
    """The chunks to prefetch now.

    Args:
        chunks: of the file.
        now: chunks of the current read, included at any size.
        columns: that are read of the file, as far as is known.
        most_bytes: to prefetch beyond ``now``.
    """
    if not now:
        return []
    first = min(chunk.row_group for chunk in now)
    taken = list(now)
    for chunk in chunks:
        if chunk.row_group < first or chunk.column not in columns or chunk in now:
            continue
        most_bytes -= chunk.end - chunk.start
        if most_bytes < 0:
            break
        taken.append(chunk)
    return sorted(taken, key=lambda chunk: chunk.start)
