"""What a forward pass is given, for its repetition: objects as they were before the first pass.

A model's cache of keys and values, for one, is an object that its blocks write to. The repetition would write to it a
second time, and to hold it until then would keep what the recomputation is to spare. So objects are remembered by what
they held; what other modules have left in an object that this one writes to is remembered as long as it lives.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from stoker.core.holding import is_ordinary, parts_of, with_parts
from stoker.train.torch_private import without_modes

_DEPTH = 6
"""Objects inside of objects that are remembered; deeper ones are handed as they are (assumed)."""
_MOST = 4096
"""Parts of an object that is remembered; one with more is no argument of a model (assumed)."""


@dataclass(slots=True)
class _Part:
    """A container or an object, and what it held."""

    kind: type[Any]
    held: dict[Any, Any]
    """Other parts, tensors that are remembered while they live, and all else as it is."""
    itself: Any
    """None once the first pass is over."""


class _WhileAlive:
    """A tensor that is not held. What it was stands in its place once it is gone: shape and type, without values."""

    def __init__(self, tensor: Tensor) -> None:
        self._reference = weakref.ref(tensor)
        self._shape, self._dtype = tensor.shape, tensor.dtype

    def tensor(self) -> Tensor:
        """The tensor, or what stands in its place."""
        found = self._reference()
        if found is not None:
            return found
        with without_modes():  # it is no operation of the pass that is repeated
            return torch.empty(self._shape, dtype=self._dtype, device="meta")


class Given:
    """Arguments of one forward pass besides the tensors among its positional ones.

    Args:
        args: positional ones.
        kwargs: named ones.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        others = tuple(None if isinstance(arg, Tensor) else arg for arg in args)
        self._handed: tuple[tuple[Any, ...], Mapping[str, Any]] | None = (others, kwargs)
        seen: dict[int, _Part] = {}
        self._parts: list[Any] = [_part(each, seen, _DEPTH) for each in others]
        self._named = {name: _part(each, seen, _DEPTH) for name, each in kwargs.items()}

    @contextlib.contextmanager
    def handed(self) -> Generator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
        """The arguments, for the block: the first time as they are, then made again as they were."""
        if self._handed is None:
            made: dict[int, Any] = {}
            yield (
                tuple(_made(each, made) for each in self._parts),
                {name: _made(each, made) for name, each in self._named.items()},
            )
            return
        try:
            yield self._handed
        finally:
            self._handed = None
            for each in (*self._parts, *self._named.values()):
                _settle(each)


def holds_objects(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments of a forward pass are to be remembered: whether it could write to one that is no tensor."""
    return any(_can_change(each) for each in (*args, *kwargs.values()))


def _can_change(value: Any) -> bool:
    if value is None or isinstance(value, (Tensor, str, int, float)):
        return False
    if isinstance(value, tuple):
        return any(map(_can_change, value))  # pyright: ignore[reportUnknownArgumentType]
    return parts_of(value) is not None


def _part(value: Any, seen: dict[int, _Part], depth: int) -> Any:
    """A value, or what it holds if it is a container or an object."""
    if value is None or isinstance(value, (Tensor, str, int, float)):
        return value
    if id(value) in seen:
        return seen[id(value)]
    parts = parts_of(value) if depth else None
    # An object without attributes is told from others by what it is alone.
    if parts is None or len(parts) > _MOST or (not parts and is_ordinary(value)):
        return value
    kind: type[Any] = type(cast("object", value))
    found = seen[id(value)] = _Part(kind, {}, value)
    found.held = {key: _part(each, seen, depth - 1) for key, each in parts.items()}
    return found


def _settle(part: Any) -> None:
    """The first pass is over: objects that it wrote to are no longer held, nor is what others have left in them."""
    if isinstance(part, _Part) and part.itself is not None:
        if is_ordinary(part.itself):
            _let_go(part, _is_changed(part))
            return
        part.itself = None
        for each in part.held.values():
            _settle(each)


def _is_changed(part: Any) -> bool:
    """Whether an object, or one in it, holds something else than before."""
    if not isinstance(part, _Part) or part.itself is None:
        return False
    now = parts_of(part.itself) or {}
    if now.keys() != part.held.keys():
        return True
    for key, before in part.held.items():
        was = before.itself if isinstance(before, _Part) else before
        if now[key] is not was or _is_changed(before):
            return True
    return False


def _let_go(part: _Part, is_written: bool) -> None:
    now, part.itself = parts_of(part.itself) or {}, None
    for key, each in part.held.items():
        if isinstance(each, _Part):
            if each.itself is not None:
                _let_go(each, is_written)
        elif is_written and isinstance(each, Tensor) and each.grad_fn is not None and now.get(key) is each:
            # Made by a forward pass, and left alone by this one.
            part.held[key] = _WhileAlive(each)


def _made(part: Any, made: dict[int, Any]) -> Any:
    """A value as it was."""
    if isinstance(part, _WhileAlive):
        return part.tensor()
    if not isinstance(part, _Part):
        return part
    if id(part) not in made:
        made[id(part)] = with_parts(part.kind, {key: _made(each, made) for key, each in part.held.items()})
    return made[id(part)]
