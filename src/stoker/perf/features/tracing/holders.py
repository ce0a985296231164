"""Which variables of the program hold tensors."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterable
from types import FrameType
from typing import Any, cast

from torch import Tensor

_MOST = 64
"""Entries of a container that are looked at: outputs have few, and what has more is no output."""


def tensors_in(frames: Iterable[FrameType]) -> Generator[tuple[Tensor, str, FrameType]]:
    """Tensors of local variables, directly or in a container, each with the variable's name and its frame."""
    for name, value, frame in locals_of(frames):
        for tensor in _tensors_of(value):
            yield tensor, name, frame


def locals_of(frames: Iterable[FrameType]) -> Generator[tuple[str, Any, FrameType]]:
    """Local variables of frames, each with its name."""
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            yield name, value, frame
        if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            # There a frame keeps the dictionary that it gave out, and with it tensors that the program drops later.
            frame.f_locals.clear()


def _tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        found = list(cast("dict[Any, Any]", value).values())
    elif isinstance(value, (list, tuple)):
        found = list(cast("list[Any] | tuple[Any, ...]", value))
    else:
        return []
    return [each for each in found if isinstance(each, Tensor)] if len(found) <= _MOST else []
