"""Whether two states, whatever holds them, are equal to the last bit, in the same order and on the same devices."""

from __future__ import annotations

from typing import Any

import torch


def same(first: Any, second: Any) -> bool:
    """Tensors, dicts, lists and tuples of them, and other values."""
    if isinstance(first, torch.Tensor):
        return first.device == second.device and torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second
