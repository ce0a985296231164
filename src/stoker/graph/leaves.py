# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (batches are whatever the loader makes)
"""The leaves of a batch, in an order that is the same in the worker that made it and in the training process.

Leaves are tensors, and what functions marked as stateless may take: NumPy arrays, and lists or tuples of strings or
numbers.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from stoker.graph.torch_private import version_of

_MAX_LEAVES = 512
_MAX_DEPTH = 8
_MAX_PARTS = 10_000
"""Most parts of a batch to inspect: objects may refer to each other in cycles."""
_ATOMS = frozenset({str, bytes, int, float, bool})


def leaves_of(batch: Any) -> list[Any]:
    """Every leaf of a batch once: in mappings, sequences, data classes and attributes of objects.

    A batch with more than 512 leaves, or 10,000 parts, has none: nothing of it is moved.
    """
    found: dict[int, Any] = {}
    room = itertools.count(_MAX_PARTS, -1)
    for leaf in _walk(batch, 0, room):
        found.setdefault(id(leaf), leaf)
        if len(found) > _MAX_LEAVES:
            return []
    return list(found.values()) if next(room) >= 0 else []


def _walk(part: Any, depth: int, room: Iterator[int]) -> Iterator[Any]:
    if next(room) < 0:
        return
    if isinstance(part, torch.Tensor | np.ndarray):
        yield part
    elif depth > _MAX_DEPTH or part is None or type(part) in _ATOMS:
        return
    elif type(part) in (list, tuple) and part and type(part[0]) in _ATOMS:
        if all(type(atom) in _ATOMS for atom in part):
            yield part
    else:
        for inner in _parts(part):
            yield from _walk(inner, depth + 1, room)


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, list | tuple):
        return list(part)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    return list(getattr(part, "__dict__", {}).values())


def signature_of(leaves: list[Any]) -> tuple[Any, ...]:
    """What a batch looks like; steps on batches that look the same may be the same."""
    return tuple(_look(leaf) for leaf in leaves)


def _look(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        if leaf.is_nested or leaf.layout is not torch.strided:
            return (leaf.dtype, leaf.layout)
        return tuple(leaf.shape), leaf.dtype, leaf.stride()
    if isinstance(leaf, np.ndarray):
        return leaf.shape, leaf.dtype.str, leaf.strides
    return (type(leaf), len(leaf))


def mark(leaf: Any) -> Any:
    """What :func:`is_changed` compares with later: a tensor's version, a copy of anything else."""
    if isinstance(leaf, torch.Tensor):
        return version_of(leaf)
    return leaf.copy() if isinstance(leaf, np.ndarray) else tuple(leaf)


def is_changed(leaf: Any, marked: Any) -> bool:
    """Whether a leaf was written to since it was marked."""
    if isinstance(leaf, torch.Tensor):
        return version_of(leaf) != marked
    if isinstance(leaf, np.ndarray):
        return leaf.tobytes() != marked.tobytes()
    return tuple(leaf) != marked
