"""What the memories of units begin with: weights, biases, multipliers, thresholds, tables, in the order in which they are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.folding import Folding, LayerWork
from stoker.deploy.rtl.structure import MemoryFile


def packed(numbers: Integers, bits: int) -> MemoryFile:
    """A word for each row of numbers, the first number lowest.

    Args:
        numbers: of shape (words, numbers of a word).
        bits: of a number, two's complement.
    """
    whole = numbers.astype(np.int64)
    planes: NDArray[np.uint8] = ((whole[:, :, None] >> np.arange(bits)) & 1).astype(np.uint8)
    lines = np.packbits(planes.reshape(len(whole), -1), axis=1, bitorder="little")
    return MemoryFile(
        bits=bits * numbers.shape[1], words=tuple(int.from_bytes(line.tobytes(), "little") for line in lines)
    )


def weight_words(weight: Integers, work: LayerWork, folding: Folding, bits: int) -> MemoryFile:
    """The weights of one window's beats, each word those of PE sums with their taps and lanes.

    Args:
        weight: (output channels, height, width, input channels of a group), or (outputs, inputs) of a dense layer.
        work: of the layer.
        folding: of its unit.
        bits: of a weight.
    """
    taps, pe = folding.taps, folding.pe
    steps = work.windows.taps // taps
    if work.depthwise:
        ordered = weight.reshape(-1, pe, steps, taps).transpose(0, 2, 1, 3)
    else:
        folds = work.outputs // work.groups // pe
        words = work.windows.channels // work.groups // folding.lanes
        parts = weight.reshape(work.groups, folds, pe, steps, taps, words, folding.lanes)
        ordered = parts.transpose(0, 1, 3, 5, 2, 4, 6)
    return packed(ordered.reshape(-1, work.multipliers(folding)), bits)


def by_channel(numbers: Integers, lanes: int, bits: int) -> MemoryFile:
    """Numbers of channels, ``lanes`` of them in a word."""
    return packed(numbers.reshape(-1, lanes), bits)


def threshold_words(thresholds: Integers, lanes: int, bits: int, beyond: int) -> dict[str, MemoryFile]:
    """Memories of ``thresholds.sv`` by the end of their names, ``STEP_LANE``.

    A step's word is the middle one of those thresholds that the bits before it have left; the search goes over a power
    of two of results, so that some are never reached.

    Args:
        thresholds: of shape (channels, results but the lowest); one channel for all.
        lanes: channels of a word.
        bits: of a threshold.
        beyond: a threshold that no sum reaches.
    """
    channels, count = thresholds.shape
    steps = count.bit_length()
    whole = np.full((channels, 1 << steps), beyond, np.int64)
    whole[:, 1 : count + 1] = thresholds
    if channels == 1:
        whole = np.repeat(whole, lanes, axis=0)
    by_lane = whole.reshape(-1, lanes, 1 << steps)
    found: dict[str, MemoryFile] = {}
    for step in range(steps):
        size = 1 << (steps - step)
        middle = by_lane[:, :, size // 2 :: size]
        for lane in range(lanes):
            found[f"{step}_{lane:03}"] = packed(middle[:, lane].reshape(-1, 1), bits)
    return found
