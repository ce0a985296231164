"""From a graph to a design in a folder, and what is known of it before any tool has run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from msgspec import structs

from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import device_graph, sliced_tables, tables_of
from stoker.deploy.rtl.banks import update_words
from stoker.deploy.rtl.folding import Folding, balanced, constant_folding, folded, works_of
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.records.deploy.hardware import DesignLayer, DesignSummary, PlacedTable

MULTIPLIERS = 24
"""Multipliers of arrays, unless more are asked for: with two for each lane of a requantiser, what small parts have."""


def chosen_foldings(
    graph: IntegerGraph, *, multipliers: int | None = None, cycles: int | None = None,
    given: Mapping[str, Folding] | None = None, constant: Mapping[str, int | None] | None = None,
) -> dict[str, Folding]:  # fmt: skip
    """A folding for each layer that has an array.

    Args:
        graph: of the model.
        multipliers: of all arrays; the fastest design within them. :data:`MULTIPLIERS` if nothing is asked for.
        cycles: of a sample instead: the fewest multipliers that are as fast.
        given: foldings of some layers, which stay as they are.
        constant: results in a cycle of layers whose weights are part of the circuit, which have no multipliers in their
            arrays; None for all results.

    Raises:
        ValueError: a bound cannot be kept, or an operation or layer has no such unit.
    """
    works, fixed = works_of(graph), dict(given or {})
    for name, results in (constant or {}).items():
        if name not in works:
            raise ValueError(f"`constant` must name a layer of {', '.join(works)}, got {name}")
        fixed[name] = constant_folding(name, works[name], results)
    for name, folding in fixed.items():
        if name not in works:
            raise ValueError(f"`fold` must name a layer of {', '.join(works)}, got {name}")
        if folding not in works[name].foldings():
            raise ValueError(f"`fold`: {name} has no folding {folding}; each part must divide its channels or taps")
    free = {name: work for name, work in works.items() if name not in fixed}
    if not free:
        return fixed
    if cycles is not None:
        return folded(free, cycles) | fixed
    spent = sum(works[name].multipliers(folding) for name, folding in fixed.items() if name not in (constant or {}))
    most = (max(MULTIPLIERS, len(works)) if multipliers is None else multipliers) - spent
    return balanced(free, most) | fixed


def design(
    graph: IntegerGraph, foldings: Mapping[str, Folding], folder: Path, source: str = "",
    fifos: Literal["full", "least"] = "full", updatable: bool = False, constant: Collection[str] = (),
    host_tables: Collection[str] | None = None, thresholds: Collection[str] = (),
) -> DesignSummary:  # fmt: skip
    """Writes a design, and says what it is.

    Args:
        graph: of the model.
        foldings: of its layers.
        folder: which is made.
        source: digest of the package; kept in the design, and readable from it.
        fifos: depths for full speed, or the least that never stop.
        updatable: whether another model's numbers can be brought into it while it runs; doubles its memories.
        constant: layers whose weights are part of the circuit.
        host_tables: layers whose tables stay on the host; None where nothing was asked about tables.
        thresholds: layers whose requantisers compare with thresholds, and do not multiply.

    Raises:
        ValueError: an operation has no unit, a layer's weights can not be part of the circuit, a table not on the host,
            or a layer has no multipliers that thresholds may replace.
        OSError: the folder cannot be written.
    """
    if updatable and host_tables:
        raise ValueError(
            f"an updatable design must have its tables on the chip, got {', '.join(host_tables)} on the host; "
            "search with `--tables chip`, or leave out `--host-table`, `--table-room` or `--updatable`"
        )
    own = device_graph(graph, host_tables or ())
    structure = lower(
        own, foldings, fifos=fifos, updatable=updatable, constant=constant, thresholds=thresholds
    )  # fmt: skip
    structure = replace(structure, host_tables=tuple(sorted(host_tables or ())))
    write_design(structure, folder, source)
    found = summary(structure, foldings, folder)
    if host_tables is None:
        return found
    whole = None
    if host_tables and not sliced_tables(graph):
        whole = lower(graph, foldings, fifos=fifos, constant=constant, thresholds=thresholds, filled=False).cycles
    tables = tuple(
        PlacedTable(
            layer=each.layer, rows=each.rows, size=each.size, bits=each.bits, on_host=each.layer in host_tables,
            sample_bytes=each.host_bytes if each.layer in host_tables else each.chip_bytes,
        )
        for each in tables_of(graph)
    )  # fmt: skip
    return structs.replace(found, tables=tables, whole_cycles=whole)


def summary(structure: Structure, foldings: Mapping[str, Folding], folder: Path) -> DesignSummary:
    """What a design is, by closed form."""
    layers = [
        DesignLayer(
            layer=node.layer, kind=node.module, multipliers=node.multipliers, cycles=node.cycles,
            fold=" x ".join(map(str, (fold.pe, fold.lanes, fold.taps))) if fold else "",
        )
        for node in structure.nodes.values()
        if node.module and node.layer
        for fold in (foldings.get(node.layer),)
    ]  # fmt: skip
    bits = sum(
        memory.bits * len(memory.words) for node in structure.nodes.values() for memory in node.memories.values()
    ) * (2 if structure.updatable else 1)
    return DesignSummary(
        folder=str(folder), layers=tuple(layers), cycles=structure.cycles, multipliers=structure.multipliers,
        memory_bits=bits, fifos=structure.fifos,
        update_bytes=4 * len(update_words(structure, "0" * 8)) if structure.updatable else None,
    )  # fmt: skip
