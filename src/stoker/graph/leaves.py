"""The tensors of a batch, in an order that is the same in the worker that made it and in the training process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_MAX_LEAVES = 512
_MAX_DEPTH = 8


def leaves_of(batch: Any) -> list[torch.Tensor]:
    """Every tensor of a batch once: in mappings, sequences, data classes and attributes of objects.

    A batch with more than 512 tensors has none: nothing of it is moved.
    """
    found: dict[int, torch.Tensor] = {}
    for tensor in _walk(batch, 0):
        found.setdefault(id(tensor), tensor)
        if len(found) > _MAX_LEAVES:
            return []
    return list(found.values())


def _walk(part: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif depth > _MAX_DEPTH or isinstance(part, str | bytes | int | float | type(None)):
        return
    else:
        for inner in _parts(part):
            yield from _walk(inner, depth + 1)


def _parts(part: Any) -> list[Any]:
    if isinstance(part, Mapping):
        return list(part.values())  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(part, list | tuple):
        return list(part)  # pyright: ignore[reportUnknownArgumentType]
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return [getattr(part, field.name) for field in dataclasses.fields(part)]
    return list(getattr(part, "__dict__", {}).values())


def signature_of(leaves: list[torch.Tensor]) -> tuple[Any, ...]:
    """What a batch looks like; steps on batches that look the same may be the same."""
    return tuple((tuple(leaf.shape), leaf.dtype, leaf.stride()) for leaf in leaves)
