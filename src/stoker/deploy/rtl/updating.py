"""Another model's numbers for a design that runs: they fit where nothing but numbers differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.banks import update_words
from stoker.deploy.rtl.folding import Folding, works_of
from stoker.deploy.rtl.generate import DesignDescription, DesignEnd, DesignUnit, ends_of, updates_of
from stoker.deploy.rtl.mapping import lower

_SHOWN = 4
"""Differences that a refusal names."""


def update_of(description: DesignDescription, graph: IntegerGraph, digest: str) -> list[int]:
    """The words of 32 bits that bring a graph's numbers into a design.

    Args:
        description: of the design.
        graph: of the other model.
        digest: of its package, in hexadecimal; its beginning is read from the design afterwards.

    Raises:
        ValueError: the design takes no updates, or the graph is of another structure.
    """
    if description.updates is None:
        raise ValueError("`design` must take updates; write it with `stoker deploy rtl --updatable`")
    units = description.updates.units
    foldings = {
        unit.layer: Folding(*(int(unit.parameters[name]) for name in ("PE", "LANES", "TAPS")))
        for unit in units.values()
        if unit.module == "matrix_unit"
    }
    if missing := works_of(graph).keys() ^ foldings.keys():
        raise _refusal([f"the layer {name} is in one alone" for name in sorted(missing)])
    try:
        structure = lower(graph, foldings, updatable=True)
    except ValueError as error:  # a folding that does not divide the layer
        raise _refusal([str(error)]) from None
    found = [
        *_differing(units, updates_of(structure).units),
        *_ends(description.inputs, ends_of(structure, inputs=True)),
        *_ends(description.outputs, ends_of(structure, inputs=False)),
    ]
    if found:
        raise _refusal(found)
    return update_words(structure, digest)


def _refusal(found: list[str]) -> ValueError:
    shown = "; ".join(found[:_SHOWN]) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    return ValueError(
        f"`update` must be of the design's structure, and differs: {shown}; write a separate design with "
        "`stoker deploy rtl`"
    )


def _differing(there: Mapping[str, DesignUnit], here: Mapping[str, DesignUnit]) -> Iterator[str]:
    if list(there) != list(here):
        yield f"the design has the units {', '.join(there)}, the update {', '.join(here)}"
        return
    for name, unit in there.items():
        other, layer = here[name], unit.layer
        if unit.module != other.module:
            yield f"{layer} is a {other.module}, in the design a {unit.module}"
            continue
        for key, value in unit.parameters.items():
            if value != other.parameters.get(key):
                yield f"{layer} has {key} {other.parameters.get(key)}, the design {value}"
        for file, (bits, words) in unit.memories.items():
            if (bits, words) != other.memories.get(file):
                yield f"{layer} has other memories"


def _ends(there: tuple[DesignEnd, ...], here: tuple[DesignEnd, ...]) -> Iterator[str]:
    for one, other in zip(there, here, strict=False):
        if one != other:
            yield f"`{other.port}` is {_end(other)}, in the design {_end(one)}"
    if len(there) != len(here):
        yield f"it has {len(here)} ends, the design {len(there)}"


def _end(end: DesignEnd) -> str:
    return (
        f"{end.words} words of {end.lanes} {'signed' if end.signed else 'unsigned'} numbers of {end.number_bytes} bytes"
    )
