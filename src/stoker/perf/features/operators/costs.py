"""The cost of one call: its FLOPs, and how many bytes of which tensors it reads and writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.perf.features.torch_private import indices_of, values_of


class Touch(NamedTuple):
    """A tensor that a kernel reads or writes, and how many bytes of it."""

    tensor: Tensor
    bytes: float


class Cost(NamedTuple):
    """The cost of one call."""

    kind: str
    flops: float
    dims: tuple[int, ...]
    reads: Sequence[Touch]
    writes: Sequence[Touch]
    scratch: tuple[float, ...] = ()
    """Bytes that each of its kernels takes while it runs, besides these."""
    num_late_outputs: int = 0
    """Number of its last results that are allocated while the kernels' memory is held already."""


Formula = Callable[[tuple[Any, ...], list[Tensor], list[Tensor]], Cost]
"""Computes a cost from arguments, tensors among them, and tensors of the result."""


def touched(tensor: Tensor) -> Touch:
    """Bytes of the whole tensor; a tensor broadcast by `expand` is read once."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or size == 0:
            count *= size
    return Touch(tensor, count * tensor.element_size())


def all_of(tensors: Sequence[Tensor]) -> list[Touch]:
    """Each tensor, sparse ones by their values."""
    return [touched(tensor) if tensor.layout is torch.strided else _sparse(tensor) for tensor in tensors]


def _sparse(tensor: Tensor) -> Touch:
    values = values_of(tensor)
    return Touch(values, values.numel() * values.element_size() + indices_of(tensor).numel() * 8)


def elements(tensors: Sequence[Tensor]) -> int:
    """Elements of the largest tensor; sparse ones count by the rows that they have."""
    return max((t.numel() if t.layout is torch.strided else values_of(t).numel() for t in tensors), default=0)


def simple(kind: str, flops_per_element: float = 0.0) -> Formula:
    """The formula of a kernel that reads its inputs once and writes its outputs once."""

    def cost(args: tuple[Any, ...], ins: list[Tensor], outs: list[Tensor]) -> Cost:
        largest = elements([*ins, *outs])
        return Cost(kind, flops_per_element * largest, (largest,), all_of(ins), all_of(outs))

    return cost


def causal_pairs(queries: int, keys: int, causal: bool) -> float:
    """Pairs of query and key that are computed; a causal kernel skips what lies above the diagonal."""
    if not causal:
        return float(queries * keys)
    rows = min(queries, keys)
    return rows * (rows + 1) / 2 + max(0, queries - keys) * keys


def attention_dims(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """Heads of all samples, queries, keys, and the sizes of a query and a value."""
    return (math.prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1])
