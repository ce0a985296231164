# pyright: reportUnknownMemberType=false
"""Sparse results with rows, where torch's shape functions return none.

The number of rows after merging equal ones depends on values; all looked-up rows count as distinct.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stoker.perf.features.torch_private import num_stored


def _made(like: Tensor, rows: int) -> Tensor:
    """A sparse tensor with rows like those of ``like``, of unknown values."""
    indices = torch.empty((1, rows), dtype=torch.int64, device="cpu")
    values = torch.empty((rows, *like.shape[1:]), dtype=like.dtype, device="cpu")
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False)


def _bag_gradient(args: tuple[Any, ...]) -> Tensor | None:
    """Gradient of an EmbeddingBag with ``sparse=True``: a row for each lookup."""
    grad, indices, num_weights, sparse = args[0], args[1], args[6], args[9]
    if not sparse:
        return None
    table = torch.empty((num_weights, *grad.shape[1:]), dtype=grad.dtype, device="meta")
    return _made(table, indices.numel())


def _alike(args: tuple[Any, ...]) -> Tensor | None:
    """A result with as many rows as the argument has."""
    x = args[0]
    return _made(x, num_stored(x)) if x.layout is torch.sparse_coo and x.sparse_dim() == 1 else None


def _masked(args: tuple[Any, ...]) -> Tensor | None:
    """The rows of a dense tensor that the mask selects."""
    return _made(args[0], num_stored(args[1])) if args[1].layout is torch.sparse_coo else None


RESULTS: dict[str, Callable[[tuple[Any, ...]], Tensor | None]] = {
    "_embedding_bag_backward": _bag_gradient,
    "_coalesce": _alike,
    "clone": _alike,
    "sparse_mask": _masked,
}
"""Functions for the result of an operation; they return None if it is not sparse. Called under the fake mode."""
