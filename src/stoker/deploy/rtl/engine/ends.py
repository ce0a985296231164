"""The words of an engine's streams: values one after another, each from a word's first lane on."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.engine.shape import NUMBER_BITS

Whole = NDArray[np.int64]


def beats_of(graph: IntegerGraph, inputs: Mapping[str, Integers], lanes: int) -> NDArray[np.uint16]:
    """Input values as words of the input stream: (samples, words, lanes), two's complement of 16 bits."""
    samples = len(next(iter(inputs.values())))
    parts = [_padded(inputs[port.value].reshape(samples, -1), lanes) for port in graph.inputs]
    return (np.concatenate(parts, axis=1) & 0xFFFF).astype(np.uint16).reshape(samples, -1, lanes)


def values_of(graph: IntegerGraph, words: NDArray[np.uint16]) -> dict[str, NDArray[np.int32]]:
    """Output values, flat for each sample, from words of the output stream: (samples, words, lanes)."""
    lanes, at = words.shape[2], 0
    found: dict[str, NDArray[np.int32]] = {}
    for port in graph.outputs:
        value = graph.value(port)
        count = -(-value.elements // lanes)
        numbers = words[:, at : at + count].reshape(len(words), -1)[:, : value.elements].astype(np.int64)
        found[port.value] = with_sign(numbers, value.low >= 0).astype(np.int32)
        at += count
    return found


def _padded(numbers: Integers, lanes: int) -> Integers:
    return np.pad(numbers.astype(np.int64), ((0, 0), (0, -numbers.shape[1] % lanes)))


def with_sign(numbers: Whole, unsigned: bool) -> Whole:
    """Numbers of 16 bits as they are meant."""
    return numbers if unsigned else (numbers ^ (1 << (NUMBER_BITS - 1))) - (1 << (NUMBER_BITS - 1))
