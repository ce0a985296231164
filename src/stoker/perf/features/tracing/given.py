"""Objects that modules are given and leave tensors in, such as a cache of keys and values: how long they hold them.

A recomputed module drops what it made once its forward pass is over; what it left in such an object lives on with it.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator
from typing import Any

import torch
from torch import Tensor

from stoker.core.holding import is_ordinary, parts_of
from stoker.perf.features.tracing.buffers import Buffers

_DEPTH, _MOST = 5, 4096
"""Objects inside of objects, and parts of each, that are looked at."""


class GivenObjects:
    """Follows objects among the arguments of modules.

    Args:
        buffers: of the trace.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._alive: dict[int, tuple[weakref.ref[Any], set[int]]] = {}
        """Objects by their identity, and the buffers that they hold."""
        self._released: dict[int, int] = {}

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass with these arguments is over."""
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Tensor) and is_ordinary(value):
                held = self._held_by(value)
                held.update(n for each in _tensors_in(value, _DEPTH) if (n := self._buffers.known(each)) is not None)

    def released(self, number: int) -> int:
        """Event until which such an object holds a buffer; 0 if none does."""
        if any(number in held for _, held in self._alive.values()):
            return self._buffers.now
        return self._released.get(number, 0)

    def _held_by(self, value: Any) -> set[int]:
        identity = id(value)
        if identity not in self._alive:
            held: set[int] = set()

            def end(_: object) -> None:
                self._released.update(dict.fromkeys(held, self._buffers.now))
                del self._alive[identity]

            self._alive[identity] = weakref.ref(value, end), held
        return self._alive[identity][1]


def _tensors_in(value: Any, depth: int) -> Generator[Tensor]:
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif depth:
        parts = parts_of(value) or {}
        for each in parts.values() if len(parts) <= _MOST else ():
            yield from _tensors_in(each, depth - 1)
