"""The model's ends as arrays: what a caller gives to whole numbers, and whole numbers to what a caller gets.

All executions do this alike, so engines differ in nothing but how they compute the graph between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.row_numbers import UNREAD, highs_of_caller
from stoker.deploy.ir.values import IntegerValue, ModelPort

Arrays = Mapping[str, NDArray[Any]]
_KINDS = {"float32": "fiu", "int64": "biu", "bool": "biu"}
"""Kinds of numbers that are taken for each dtype."""


def taken(graph: IntegerGraph, arrays: Arrays) -> dict[str, Integers]:
    """A caller's arrays as the graph's input values, by value name: (batch, …) of 32 bits. Errors of `accepted`."""
    found = accepted(graph, arrays)
    return {port.value: _taken(port, graph.value(port), found[port.name]) for port in graph.inputs}


def accepted(graph: IntegerGraph, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """A caller's arrays, contiguous and of the inputs' dtypes.

    Args:
        graph: whose inputs they are.
        arrays: by input name, each with a batch as first axis.

    Raises:
        ValueError: an input is missing, unknown, of another shape or dtype, or a row number is out of range.
    """
    expected = [port.name for port in graph.inputs]
    if set(arrays) != set(expected):
        raise ValueError(f"`arrays` must have the inputs {', '.join(expected)}, got {', '.join(arrays) or 'none'}")
    batches = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(batches) > 1:
        raise ValueError(f"`arrays` must have one batch size, got {', '.join(map(str, sorted(batches)))}")
    return {port.name: _accepted(port, graph.value(port), arrays[port.name]) for port in graph.inputs}


def given(graph: IntegerGraph, values: Mapping[str, Integers]) -> dict[str, NDArray[Any]]:
    """The graph's output values as a caller sees them, by output name."""
    return {port.name: _given(port, graph.value(port), values[port.value]) for port in graph.outputs}


def quantised(array: NDArray[Any], value: IntegerValue) -> NDArray[np.int32]:
    """Real numbers on a value's scale, as :class:`stoker.deploy.ir.values.ModelPort` has it."""
    steps = np.rint(array.astype(np.float64) * (1.0 / value.scale))
    steps = np.where(np.isnan(steps), 0.0, steps)
    low, high = value.low - value.zero_point, value.high - value.zero_point
    return np.clip(steps, low, high).astype(np.int32) + np.int32(value.zero_point)


def dequantised(array: Integers, value: IntegerValue) -> NDArray[np.float32]:
    """What whole numbers stand for."""
    return ((array.astype(np.float64) - value.zero_point) * value.scale).astype(np.float32)


def _accepted(port: ModelPort, value: IntegerValue, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape[1:] != port.shape:
        wanted = ", ".join(map(str, ("batch", *port.shape)))
        raise ValueError(f"`{port.name}` must have the shape ({wanted}), got {array.shape}")
    if array.dtype.kind not in _KINDS[port.dtype]:
        raise ValueError(f"`{port.name}` must hold {port.dtype}, got {array.dtype}")
    if value.highs:
        array = _within(port, value, array)
    elif port.dtype != "float32" and array.size and not value.low <= int(array.min()) <= int(array.max()) <= value.high:
        found = f"{int(array.min())} to {int(array.max())}"
        raise ValueError(f"`{port.name}` must hold {value.low} to {value.high}, got {found}")
    return np.ascontiguousarray(array, port.dtype)


def _within(port: ModelPort, value: IntegerValue, array: NDArray[Any]) -> NDArray[Any]:
    """Row numbers of several tables, 0 where nothing reads them."""
    highs = highs_of_caller(port, value)
    read = highs != UNREAD
    wrong = read & ((array < 0) | (array > highs))
    if wrong.any():
        first = np.argwhere(wrong)[0]
        place = tuple(first[1:].tolist())
        at = ", ".join(map(str, (":", *place)))
        raise ValueError(f"`{port.name}[{at}]` must hold 0 to {highs[place]}, got {array[tuple(first)]}")
    return array if read.all() else np.where(read, array, 0)


def _taken(port: ModelPort, value: IntegerValue, array: NDArray[Any]) -> Integers:
    ordered = array.transpose(0, *(axis + 1 for axis in port.order)).reshape(len(array), *value.shape)
    return quantised(ordered, value) if port.dtype == "float32" else ordered.astype(np.int32)


def _given(port: ModelPort, value: IntegerValue, array: Integers) -> NDArray[Any]:
    inverse = np.argsort(port.order)
    sizes = [port.shape[axis] for axis in port.order]
    ordered = array.reshape(len(array), *sizes).transpose(0, *(int(axis) + 1 for axis in inverse))
    found = dequantised(ordered, value) if port.dtype == "float32" else ordered.astype(port.dtype)
    return np.ascontiguousarray(found)
