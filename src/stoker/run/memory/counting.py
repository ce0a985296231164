"""Counts the tensors that are alive when a program ends, by what they are for and by the variables that hold them.

Nothing of the program runs: only tensors, modules and optimizers of torch's kinds are looked into, and what autograd
saved is read without the hooks that would make it again.
"""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, cast

import torch
from torch import nn

from stoker.core.code.sources import file_shown
from stoker.feed.purity.objects import is_library
from stoker.perf.features.tracing.sources import adding_line, lines_of
from stoker.records.memory import MemoryShare
from stoker.run.memory.torch_private import saved_of

_KINDS = (torch.Tensor, nn.Parameter)
"""Others may run code of the program when they are asked."""
_MOST_NODES = 200_000
"""Nodes of the autograd graph, and items of containers, that are looked at."""
_DEPTH = 4
_CONTAINERS = (list, tuple, set, frozenset, dict, deque)


class TensorCount:
    """Bytes of storages on one device, each counted once, under the first name that it gets.

    Args:
        device: kind of the device.
        index: its number; None for any.
    """

    def __init__(self, device: str, index: int | None = None) -> None:
        self._device, self._index = device, index
        self._seen: set[int] = set()

    def take(self, tensors: Iterable[Any]) -> int:
        """Bytes of those that were not counted before."""
        return sum(self._new(tensor) for tensor in tensors)

    def _new(self, tensor: Any) -> int:
        if type(tensor) not in _KINDS or tensor.device.type != self._device:
            return 0
        if self._index is not None and tensor.device.index not in (None, self._index):
            return 0
        try:
            storage = tensor.untyped_storage()
            place, size = storage.data_ptr(), storage.nbytes()
        except RuntimeError:  # a tensor without memory: of a trace, or sparse
            return 0
        if not place or place in self._seen:
            return 0
        self._seen.add(place)
        return size


def count_alive(count: TensorCount, traceback: TracebackType | None) -> tuple[list[MemoryShare], list[MemoryShare]]:
    """Bytes by category in their order, and by variable with its line, the largest first."""
    objects = gc.get_objects()
    tensors = [each for each in objects if type(each) in _KINDS]
    modules = [each for each in objects if issubclass(type(each), nn.Module)]
    optimizers = [each for each in objects if issubclass(type(each), torch.optim.Optimizer)]
    parameters = [each for each in tensors if type(each) is nn.Parameter]
    sums = {
        "parameters": count.take(parameters),
        "gradients": count.take(each.grad for each in parameters),
        "optimizer": count.take(_inside([_stored(each).get("state") for each in optimizers])),
        "other tensors of modules": count.take(_inside((_stored(each) for each in modules), 2)),
    }
    # Before what autograd saved: a variable is what a person can change.
    variables = _variables(count, traceback)
    sums["variables"] = sum(share.bytes for share in variables)
    sums["saved for the backward pass"] = count.take(_saved(tensors))
    sums["others"] = count.take(tensors)
    return [MemoryShare(*item) for item in sums.items() if item[1]], variables


def _variables(count: TensorCount, traceback: TracebackType | None) -> list[MemoryShare]:
    found: list[MemoryShare] = []
    lists: list[tuple[str, str, list[torch.Tensor]]] = []
    for frame, line in reversed(list(program_frames(traceback))):
        for name, value in list(frame.f_locals.items()):
            place = lines_of(frame, name)[0] or f"{file_shown(frame.f_code.co_filename)}:{line}"
            if size := count.take(_inside([value])):
                found.append(MemoryShare(f"`{name}` ({place})", size))
            lists += _with_graphs(frame, name, value)
    # After all variables: a graph of an earlier step is kept by the list alone, that of this step by its variables.
    for name, place, tensors in lists:
        if size := count.take(_saved(tensors)):
            found.append(MemoryShare(f"graphs of `{name}`{place}", size))
    return sorted(found, key=lambda share: -share.bytes)


def _with_graphs(frame: FrameType, name: str, value: Any) -> Iterator[tuple[str, str, list[torch.Tensor]]]:
    """Containers of tensors that keep their graphs, such as losses of all steps, with the line that adds to them."""
    parts = [(name, value), *((f"{name}.{key}", part) for key, part in _stored(value).items())]
    for label, part in parts:
        if issubclass(type(part), _CONTAINERS):
            tensors = [each for each in _inside([part], 2) if each.grad_fn is not None]
            if len(tensors) > 1:
                line = adding_line(frame.f_code.co_filename, label)
                yield label, f" ({line})" if line else "", tensors


def program_frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    """Frames of the program itself and the lines at which they were, the outermost first."""
    while traceback is not None:
        frame = traceback.tb_frame
        filename, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if not (filename.startswith("<") or is_library(filename) or module.partition(".")[0] == "stoker"):
            yield frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _inside(values: Iterable[Any], depth: int = _DEPTH) -> Iterator[Any]:
    """Tensors in values, containers and plain attributes."""
    for value in itertools.islice(values, _MOST_NODES):
        kind = cast("type[Any]", type(value))
        if kind in _KINDS:
            yield value
        elif depth and issubclass(kind, _CONTAINERS):
            items = cast("Mapping[Any, Any]", value).values() if issubclass(kind, dict) else value
            yield from _inside(list(items), depth - 1)
        elif depth and kind.__module__ not in ("builtins", "types") and not issubclass(kind, type):
            yield from _inside(list(_stored(value).values()), depth - 1)


def _stored(value: Any) -> dict[str, Any]:
    """Attributes of an object itself, not those that code computes."""
    plain = cast("type[Any]", type(value)).__getattribute__ in (object.__getattribute__, nn.Module.__getattribute__)
    found = getattr(value, "__dict__", None) if plain else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _saved(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """What the graphs of tensors keep for their backward pass."""
    waiting = deque(each.grad_fn for each in tensors if each.grad_fn is not None)
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.popleft()
        if node in seen:
            continue
        seen.add(node)
        yield from _inside(saved_of(node))
        waiting.extend(following for following, _ in node.next_functions if following is not None)
