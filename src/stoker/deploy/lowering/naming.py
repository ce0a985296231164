"""Whether widths by layer name something that has them: a misspelt name would change nothing, without a word."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from stoker.core.errors import ConfigError
from stoker.deploy.floating.operations import FloatGraph
from stoker.deploy.lowering.grids import Widths

_SHOWN = 5
_WHERE = "`stoker deploy quantise --json` lists all under `layers`"


@dataclass(frozen=True, slots=True)
class WidthNames:
    """What widths may be given to: results by their names, and modules by their paths.

    Attributes:
        weights: with weights whose width can be chosen.
        results: with a result whose width can be chosen.
    """

    weights: frozenset[str]
    results: frozenset[str]


def check_names(widths: Widths, names: WidthNames, graph: FloatGraph) -> None:
    """Refuses names that have no such widths. Bits of weights count for nothing where bits of a result come with them.

    Args:
        widths: given.
        names: of a lowered graph.
        graph: as it was imported, batch norms not folded.

    Raises:
        ConfigError: with the closest names, or the name to give in place of one that is part of another.
    """
    known = names.weights | names.results
    layers = {each.name: each.layer for each in graph.operations}
    reading = [each for each in graph.operations if each.sources]
    folded = {name: each.sources[0] for each in reading for name in (each.layer, each.name)}
    for name in sorted({*widths.weights_by_layer, *widths.activations_by_layer} - known):
        if name in folded:
            before = folded[name]
            other = layers.get(before) or before
            raise ConfigError(
                f"`{name}` must have a width that can be chosen, and is part of `{other}` or only moves its numbers; "
                f"give `{other}` the width"
            )
        close = difflib.get_close_matches(name, sorted(known), _SHOWN, 0.5) or sorted(known)[:_SHOWN]
        raise ConfigError(f"`{name}` must be a module or a result of the model, such as {', '.join(close)}; {_WHERE}")
    for name in sorted({*widths.weights_by_layer} - names.weights - {*widths.activations_by_layer}):
        bits = widths.weights_by_layer[name]
        raise ConfigError(
            f"`{name}` must have weights to be given {bits} bits of them, and has none; write `{name}={bits}/BITS` for "
            "its result"
        )
    for name in sorted({*widths.activations_by_layer} - names.results):
        raise ConfigError(f"`{name}` must have a result whose width can be chosen, and only moves numbers")
