"""Containers of the program that hold more tensors after each step, such as a list of losses."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from types import FrameType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from stoker.perf.features.lifetimes import GrowingHolder
from stoker.perf.features.torch_private import values_of
from stoker.perf.features.tracing.buffers import Buffers
from stoker.perf.features.tracing.holders import locals_of
from stoker.perf.features.tracing.sources import adding_line

_CONTAINERS = (list, dict, deque)
_DEPTH = 3
_MOST = 4096
"""Tensors of a container that are looked at: after two steps what grows has few."""


class _Found(NamedTuple):
    """A container, by what it is called."""

    name: str
    owner: Any
    value: Any
    frame: FrameType


class GrowthWatch:
    """Compares what the containers of a program hold after two steps.

    Args:
        buffers: of the trace.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._before: dict[tuple[int, str], set[int]] = {}
        self._live = 0

    def begin(self, frames: Iterable[FrameType]) -> None:
        """A step is over, and the one that is recorded begins."""
        frames = list(frames)
        # Numbers alone: a container that was kept here would keep its tensors.
        self._before = {
            (id(each.value), each.name): set(self._numbers(_tensors_of(each.value))) for each in _containers(frames)
        }
        self._live = self._apart(frames)

    def found(self, frames: Iterable[FrameType]) -> tuple[GrowingHolder, ...]:
        """What has grown since, the most first; nothing unless more memory is alive than after the step before."""
        frames = list(frames)
        more = self._apart(frames) - self._live
        new: dict[tuple[str, str], dict[int, Tensor]] = {}
        for each in _containers(frames):
            before = self._before.get((id(each.value), each.name))
            numbers = self._numbers(_tensors_of(each.value))
            if before is not None and len(numbers) > len(before):
                added = {number: tensor for number, tensor in numbers.items() if number not in before}
                new.setdefault((each.name, self._line(each, added)), added)
        return self._sized(new, more)

    def _apart(self, frames: Iterable[FrameType]) -> int:
        """Bytes that are alive, those of variables aside: one that is set for the first time does not grow."""
        held = self._numbers(value for _, value, _ in locals_of(frames) if isinstance(value, Tensor))
        return self._buffers.live_bytes() - sum(self._buffers.sizes[number] for number in held)

    def _sized(self, new: Mapping[tuple[str, str], Mapping[int, Tensor]], more: int) -> tuple[GrowingHolder, ...]:
        seen: set[int] = set()
        own: dict[tuple[str, str], int] = {}
        for key, added in new.items():
            own[key] = sum(self._buffers.sizes[number] for number in added.keys() - seen)
            seen |= added.keys()
        # What no container holds itself is kept by the graphs of those that have one.
        graphs = [key for key, added in new.items() if any(each.grad_fn is not None for each in added.values())]
        beyond = max(0, more - sum(own.values())) if graphs else 0
        found = [
            GrowingHolder(*key, min(more, size + (beyond if graphs and key == graphs[0] else 0)), key in graphs)
            for key, size in own.items()
        ]
        return tuple(sorted((each for each in found if each.bytes > 0), key=lambda each: -each.bytes))

    def _line(self, found: _Found, added: Iterable[int]) -> str:
        """The line that adds to a container; else one that made what was added."""
        files = [found.frame.f_code.co_filename]
        module = sys.modules.get(type(found.owner).__module__)
        if found.owner is not None and getattr(module, "__file__", None):
            files.append(str(getattr(module, "__file__", "")))
        line = next((line for path in files if (line := adding_line(path, found.name))), "")
        return line or next((self._buffers.lines[number] for number in added), "")

    def _numbers(self, tensors: Iterable[Tensor]) -> dict[int, Tensor]:
        """Tensors by their buffers, those that the trace knows."""
        found: dict[int, Tensor] = {}
        for tensor in tensors:
            number = self._buffers.known(tensor if tensor.layout is torch.strided else values_of(tensor))
            if number is not None:
                found[number] = tensor
        return found


def _containers(frames: Iterable[FrameType]) -> Generator[_Found]:
    """Containers that are variables, or attributes of objects that are."""
    seen: set[int] = set()
    for name, value, frame in locals_of(frames):
        parts: list[tuple[str, Any, Any]] = [(name, None, value)]
        owned: Any = None if isinstance(value, (type, Tensor)) else getattr(value, "__dict__", None)
        if type(owned) is dict:
            parts += [(f"{name}.{key}", value, part) for key, part in cast("dict[str, Any]", owned).items()]
        for label, owner, each in parts:
            if _may_grow(each) and id(each) not in seen:
                seen.add(id(each))
                yield _Found(label, owner, each, frame)


def _may_grow(value: Any) -> bool:
    bounded = isinstance(value, deque) and cast("deque[Any]", value).maxlen is not None
    return isinstance(value, _CONTAINERS) and not bounded


def _tensors_of(value: Any, depth: int = _DEPTH) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not depth or not isinstance(value, (*_CONTAINERS, tuple)):
        return []
    held = cast("Iterable[Any]", cast("dict[Any, Any]", value).values() if isinstance(value, dict) else value)
    return [tensor for part in list(held)[-_MOST:] for tensor in _tensors_of(part, depth - 1)]
