"""Kernels that torch has only for the CPU: oneDNN's LSTM layer, and attention without its scores in memory."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from stoker.perf.features.operators.costs import Cost, Touch, all_of, attention_dims, causal_pairs, touched
from stoker.perf.features.torch_private import without_modes

_PAGE = 4096
_LINE = 16
"""Numbers of float32 in a line of the cache."""


def flash(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Two products for each pair."""
    query, key, value = args[:3]
    heads, queries, keys, width, wide = dims = attention_dims(query, key, value)
    flops = 2.0 * heads * causal_pairs(queries, keys, len(args) > 4 and bool(args[4])) * (width + wide)
    return Cost("attention", flops, dims, all_of(ins), all_of(outs))


def flash_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Scores are recomputed: five products."""
    query, key, value = args[1:4]
    heads, queries, keys, width, wide = dims = attention_dims(query, key, value)
    flops = 2.0 * heads * causal_pairs(queries, keys, bool(args[7])) * (3 * width + 2 * wide)
    return Cost("attention", flops, dims, all_of(ins), all_of(outs))


def lstm_layer(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """One layer in one direction; the recurrent matrix is read again at each step."""
    flops, dims, again = _lstm(args)
    return Cost("rnn", flops, dims, [*all_of(ins), Touch(args[2], again)], all_of(outs))


def lstm_layer_backward(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
    """Both products of each forward product."""
    flops, dims, again = _lstm(args)
    # The gates' gradients are written once and read by the products for the weights.
    gates = Touch(args[0], 4.0 * touched(args[0]).bytes / args[0].shape[-1] * dims[3])
    return Cost("rnn", 2 * flops, dims, [*all_of(ins), Touch(args[2], again), gates], [*all_of(outs), gates])


def _lstm(args: tuple[Any, ...]) -> tuple[float, tuple[int, ...], float]:
    """FLOPs, sizes as for fused kernels (one layer), and bytes of rereading the recurrent matrix."""
    x, inner, recurrent = args[:3]
    tokens, steps, hidden = math.prod(x.shape[:-1]), x.shape[0], recurrent.shape[1]
    flops = 2.0 * tokens * (inner.numel() + recurrent.numel()) + 10.0 * tokens * hidden
    return flops, (tokens, steps, x.shape[-1], hidden, 1, 4), touched(recurrent).bytes * (steps - 1)


def lstm_workspace_bytes(args: tuple[Any, ...]) -> int:
    """Bytes that oneDNN's LSTM keeps for its backward pass; 0 without one.

    Gates, states of both sides of each step with their gradients, cell states with theirs, and the steps' outputs, each
    page-aligned. Source: oneDNN's src/cpu/rnn/rnn_utils.hpp (set_offsets), and sizes as measured; how many parts hold
    states depends on its version.
    """
    x, recurrent = args[0], args[2]
    if not args[-1]:
        return 0
    steps, batch, width = x.shape
    hidden = recurrent.shape[1]
    states = 2 * (steps + 1) * batch
    sizes = [steps * batch * _padded(4 * hidden)]
    sizes += [states * _padded(max(width, hidden))] * _parts_with_states() + [states * hidden] * 2
    sizes += [steps * batch * _padded(hidden)]
    return sum(math.ceil(4 * size / _PAGE) * _PAGE for size in sizes)


@functools.cache
def _parts_with_states() -> int:
    """Parts with states, from the installed oneDNN.

    They are 5 as of torch 2.6 and 2.9 (oneDNN 3.5 and 3.7), 3 as of 2.13 and 2.15. The query is a layer of one step, so
    small that each part is a page; four parts hold other data.
    """
    layer: Any = torch.ops.aten.mkldnn_rnn_layer
    with without_modes():
        row, weights, biases = torch.zeros(1, _LINE), torch.zeros(4 * _LINE, _LINE), torch.zeros(4 * _LINE)
        ways = (False, list[int](), 2, _LINE, 1, True, False, True, True)
        workspace = layer(row[None], weights, weights, biases, biases, row, row, *ways)[3]
    return workspace.nbytes // _PAGE - 4


def _padded(row: int) -> int:
    """Rows are whole cache lines, and no multiple of 256 numbers, which would all map to one set of the cache."""
    whole = math.ceil(row / _LINE) * _LINE
    return whole + _LINE if whole % 256 == 0 else whole
