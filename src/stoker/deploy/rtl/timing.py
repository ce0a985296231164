"""When the words of a sample leave the units of an empty design, by closed form along its nodes: its latency."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.rtl.structure import DesignNode, Parameter, Structure

Times = NDArray[np.float64]
_LINES, _OUT = 4, 1
"""Cycles through a line buffer and a FIFO."""
_LAW = 5
"""Cycles of a requantiser that multiplies or shifts."""
_STEPS = {
    "matrix_unit": _LINES + 3 + _OUT,
    "constant_unit": _LINES + 1 + _OUT,
    "pool_unit": _LINES + 1 + _OUT,
    "add_unit": 4 + _OUT,
    "table_unit": 2 + _OUT,
    "lookup_unit": _LINES + 3 + _OUT,
    "resize_stream": 1,
    "fifo": 1,
}
"""Cycles from the last work on a word to its place on the stream; adders and requantisers of some units come on top."""
_WORKING = ("matrix_unit", "constant_unit", "pool_unit", "lookup_unit")
"""Units whose words take several cycles of work each, once what they need has come."""


def law_cycles(parameters: Mapping[str, Parameter]) -> int:
    """Cycles of a unit's requantiser; by thresholds, one for each bit that tells its results apart."""
    if not parameters.get("THRESHOLDS"):
        return _LAW
    return (int(parameters["HIGH"]) - int(parameters["LOW"])).bit_length()


def latency_cycles(structure: Structure) -> int:
    """Cycles from the first word of a sample to the last of its results, through an empty design."""
    return max(latencies(structure))


def latencies(structure: Structure) -> list[int]:
    """The same for each output by itself.

    A word leaves when the words that it needs have come (``consumed``) and the one before has left, at the pace of its
    unit. Left out is what waits for places in FIFOs, which a single sample hardly does.
    """
    left: dict[str, Times] = {}
    for name, node in structure.nodes.items():
        left[name] = _times(node, [left[source] for source in node.sources])
    return [round(float(left[end.stream][-1])) for end in structure.outputs]


def _times(node: DesignNode, inputs: list[Times]) -> Times:
    """When each word of a node leaves it."""
    words = np.arange(1, node.stream.words + 1)
    gap = max(node.cycles, node.stream.words) / node.stream.words
    if not node.sources:
        return words.astype(np.float64)
    ready = np.zeros(len(words))
    for times, needed in zip(inputs, node.flow.consumed(words), strict=True):
        ready = np.maximum(ready, times[np.clip(needed, 1, len(times)) - 1])
    work = gap if node.module in _WORKING else 0.0
    # t[n] = max(t[n - 1] + gap, ready[n] + work), without a loop.
    begun: Times = np.maximum.accumulate(ready - words * gap)
    return np.asarray(begun + words * gap + (work + _STEPS.get(node.module, 0) + _more_steps(node)), np.float64)


def _more_steps(node: DesignNode) -> int:
    """Levels of the trees of adders of an array, and the requantiser where there is one."""
    given = node.parameters
    levels = 0
    if node.module == "matrix_unit":
        lanes, taps, own = (int(given[name]) for name in ("LANES", "TAPS", "OWN"))
        levels = ((taps if own else taps * lanes) - 1).bit_length()
    if node.constant is not None:
        levels = node.constant.sums.levels
    sums = node.module in ("matrix_unit", "constant_unit", "add_unit") or given.get("SUMMED")
    return levels + (law_cycles(given) if sums or given.get("LARGEST") == 0 else 0)
