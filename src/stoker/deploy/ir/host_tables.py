"""Tables of embeddings that a design has no room for: they stay on the host, which sends their rows; pure.

The host does what leads from the model's inputs to a table's rows, sums of bags included, by the law; the design takes
these numbers as inputs, on the same grids. So outputs are the law's wherever the cut is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.pruning import pruned
from stoker.deploy.ir.values import ModelPort

_LOOKUPS = (op.Embedding, op.EmbeddingBag)
_INDEX_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDemand:
    """A table of a model, on the chip or on the host.

    Attributes:
        layer: the value that its rows become.
        rows: of the table.
        size: numbers of a row.
        bits: of all its rows.
        chip_bytes: of a sample's row numbers, where the table is on the chip; 0 for those that it computes.
        host_bytes: of a sample's rows or sums of rows, where it is on the host.
    """

    layer: str
    rows: int
    size: int
    bits: int
    chip_bytes: int
    host_bytes: int

    @property
    def more_bytes(self) -> int:
        """What the cut minimises: bytes that a sample sends more from the host; at least one."""
        return max(1, self.host_bytes - self.chip_bytes)


def tables_of(graph: IntegerGraph) -> list[TableDemand]:
    """Tables whose rows depend on whole inputs alone, moved or computed; others can not leave the design."""
    outputs = {port.value for port in graph.outputs}
    found: list[TableDemand] = []
    for each in graph.operations:
        if isinstance(each, _LOOKUPS) and each.output not in outputs and _is_of_whole(graph, each.source):
            made, (rows, size) = graph.values[each.output], graph.constants[each.table].shape
            width = each.table_bits if isinstance(each, op.EmbeddingBag) else made.bits
            found.append(
                TableDemand(
                    layer=each.output, rows=rows, size=size, bits=rows * size * width,
                    chip_bytes=_INDEX_BYTES * graph.values[each.source].elements * _moved(graph, each.source),
                    host_bytes=made.elements * (1 if made.bits <= 8 else 2),
                )
            )  # fmt: skip
    return found


def sliced_tables(graph: IntegerGraph) -> list[str]:
    """Tables whose row numbers are cut out of an input, put in another order or masked: no dataflow design does."""
    return [
        each.layer
        for each in tables_of(graph)
        if any(isinstance(before, (op.Slice, op.Permute, op.Multiply)) for before in _before(graph, each.layer))
    ]


def on_host(tables: Sequence[TableDemand], room_bits: int) -> list[str]:
    """Which tables stay on the host: those whose rows are the fewest bytes a sample more than their row numbers.

    Exact: for each number of bytes, the most bits that leave the chip for them. A table whose rows are no more
    bytes than its row numbers counts as one byte, and stays on the chip where it has room.

    Args:
        tables: of a model.
        room_bits: for tables on the chip.
    """
    wanted = sum(each.bits for each in tables) - room_bits
    if wanted <= 0:
        return []
    best: dict[int, tuple[int, tuple[str, ...]]] = {0: (0, ())}
    for each in tables:
        for spent, (bits, names) in sorted(best.items(), reverse=True):
            more = bits + each.bits
            if more > best.get(spent + each.more_bytes, (-1, ()))[0]:
                best[spent + each.more_bytes] = more, (*names, each.layer)
    least = min((spent for spent, (bits, _) in best.items() if bits >= wanted), default=None)
    return [each.layer for each in tables] if least is None else list(best[least][1])


def device_graph(graph: IntegerGraph, tables: Collection[str]) -> IntegerGraph:
    """What a design computes: rows of some tables are its inputs.

    Args:
        graph: of the model.
        tables: layers whose tables stay on the host.

    Raises:
        ValueError: one is no table that can.
    """
    if not tables:
        return graph
    able = [each.layer for each in tables_of(graph)]
    if unknown := sorted(set(tables) - set(able)):
        raise ValueError(f"`host_tables` must name tables of {', '.join(able) or 'no layer'}, got {', '.join(unknown)}")
    inputs = (*graph.inputs, *_rows(graph, tables))
    operations = tuple(each for each in graph.operations if each.output not in tables)
    found = pruned(replace(graph, inputs=inputs, operations=operations))
    read = {name for each in found.operations for name in op.sources_of(each)}
    read.update(port.value for port in found.outputs)
    return pruned(replace(found, inputs=tuple(port for port in inputs if port.value in read)))


def host_graph(graph: IntegerGraph, tables: Collection[str]) -> IntegerGraph:
    """What the host computes: rows of some tables, from the model's inputs."""
    return pruned(replace(graph, outputs=tuple(_rows(graph, tables))))


def _rows(graph: IntegerGraph, tables: Collection[str]) -> Iterator[ModelPort]:
    """What goes from the host to the design: the rows of each table, as they lie."""
    for name in (each.layer for each in tables_of(graph) if each.layer in tables):
        shape = graph.values[name].shape
        yield ModelPort(name=name, value=name, dtype="float32", shape=shape, order=tuple(range(len(shape))))


def _is_of_whole(graph: IntegerGraph, name: str) -> bool:
    """Whether no real input reaches a value."""
    real = {port.value for port in graph.inputs if port.dtype == "float32"}
    read = {source for each in _before(graph, name) for source in op.sources_of(each)}
    return real.isdisjoint({name, *read})


def _moved(graph: IntegerGraph, name: str) -> bool:
    """Whether a value is one of the inputs, or numbers of them."""
    return all(isinstance(each, (op.Reshape, op.Slice, op.Concat, op.Permute)) for each in _before(graph, name))


def _before(graph: IntegerGraph, name: str) -> Iterator[op.Operation]:
    producer = graph.producer(name)
    if producer is not None:
        yield producer
        for source in op.sources_of(producer):
            yield from _before(graph, source)
