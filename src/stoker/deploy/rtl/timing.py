"""When the words of a sample leave the units of an empty design, by closed form along its nodes: its latency."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.rtl.structure import DesignNode, Structure

Times = NDArray[np.float64]
_LINES, _LAW, _OUT = 6, 5, 2
"""Cycles through a line buffer, a requantiser, and in and out of a FIFO."""
_STEPS = {
    "matrix_unit": _LINES + 3 + _LAW + _OUT,
    "pool_unit": _LINES + 2 + _LAW + _OUT,
    "add_unit": 4 + _LAW + _OUT,
    "table_unit": 2 + _OUT,
    "lookup_unit": _LINES + 4 + _OUT,
    "resize_stream": 1,
    "fifo": 1,
}
"""Cycles from the last work on a word to its place on the stream, the adders of an array aside."""


def latency_cycles(structure: Structure) -> int:
    """Cycles from the first word of a sample to the last of its results, through an empty design.

    A word leaves when the words that it needs have come (``consumed``) and the one before has left, at the pace of its
    unit. Left out is what waits for places in FIFOs, which a single sample hardly does.
    """
    left: dict[str, Times] = {}
    for name, node in structure.nodes.items():
        left[name] = _times(node, [left[source] for source in node.sources])
    return round(max(float(left[end.stream][-1]) for end in structure.outputs))


def _times(node: DesignNode, inputs: list[Times]) -> Times:
    """When each word of a node leaves it."""
    words = np.arange(1, node.stream.words + 1)
    gap = max(node.cycles, node.stream.words) / node.stream.words
    if not node.sources:
        return words.astype(np.float64)
    ready = np.zeros(len(words))
    for times, needed in zip(inputs, node.flow.consumed(words), strict=True):
        ready = np.maximum(ready, times[np.clip(needed, 1, len(times)) - 1])
    # t[n] = max(t[n - 1], ready[n]) + gap, without a loop.
    begun: Times = np.maximum.accumulate(ready - (words - 1) * gap)
    return np.asarray(begun + words * gap + (_STEPS.get(node.module, 0) + _adders(node)), np.float64)


def _adders(node: DesignNode) -> int:
    """Levels of the trees of adders of an array."""
    if node.module != "matrix_unit":
        return 0
    lanes, taps, own = (int(node.parameters[name]) for name in ("LANES", "TAPS", "OWN"))
    return ((taps if own else taps * lanes) - 1).bit_length()
