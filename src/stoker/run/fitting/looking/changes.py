"""What a module's forward pass changes besides making its output: all that it can reach is looked at before and after.

A forward pass that is repeated in the backward pass would change it twice, or draw other numbers than the first time.
torch's own random streams are no matter: a repetition begins where the first pass did.
"""

from __future__ import annotations

import collections
import logging
import random
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from stoker.core.holding import parts_of
from stoker.train.torch_private import AveragingNorm, version_of

_OWN = ("_parameters", "_buffers", "_modules", "training")
"""Attributes of modules that are looked at otherwise."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_ENDS = (
    type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, logging.Logger, nn.Module,
)  # fmt: skip
"""What is looked at no further: it is no state of a model, or that of another module."""
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_DEEPEST = 8
_MOST = 1000
"""Marks of one attribute: settings of a large model's configuration are some hundred."""
_MOST_BYTES = 1 << 20
"""Larger arrays are not compared by their values."""

CHANGES_INPUT = "its forward pass changes its input"
"""The one change that is no matter to a module around it, whose own input is looked at: an activation in place."""

Marks = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Reached:
    """What a forward pass can reach, by marks that differ where it was changed.

    Attributes:
        attributes: of the module and its classes, by name.
        named: globals that the text of its forward pass names, by name.
        inputs: what it was given and a repetition is handed as it is, by its id: tensors, and objects that are not
            remembered (:mod:`stoker.train.fitting.remembering`).
        buffers: of the module.
        drawn: states of python's and NumPy's random streams.
        generator: name of a random generator that is neither; empty without one.
    """

    attributes: Mapping[str, Marks]
    named: Mapping[str, Marks]
    inputs: Mapping[int, Marks]
    buffers: Marks
    drawn: tuple[Marks, Marks]
    generator: str


def reached_by(module: nn.Module, args: Any, kwargs: Any) -> Reached:
    """What a module's forward pass can reach now; no tensor of it is kept."""
    looks = _Looks()
    own = {name: value for name, value in vars(module).items() if name not in _OWN}
    attributes = {name: looks.at(value, name) for name, value in [*_of_classes(type(module)), *own.items()]}
    named = {name: looks.at(value, name) for name, value in _named_by(type(module).forward)}
    buffers = tuple((id(buffer), _version(module, buffer)) for buffer in module.buffers(recurse=False))
    streams = looks.at(random.getstate(), ""), looks.at(np.random.get_state(legacy=False), "")
    return Reached(attributes, named, looks.at_inputs((args, kwargs)), buffers, streams, looks.generator)


def change(before: Reached, after: Reached) -> str:
    """What the forward pass between two looks changed, as a part of a sentence; empty if nothing."""
    if changed := _changed(before.attributes, after.attributes):
        return f"its forward pass writes `{changed}`"
    if before.attributes.keys() - after.attributes.keys():
        return "its forward pass deletes an attribute"
    if changed := _changed(before.named, after.named):
        return f"its forward pass changes the global `{changed}`"
    if before.buffers != after.buffers:
        return "its forward pass writes buffers"
    for name, (then, now) in zip(("python", "NumPy"), zip(before.drawn, after.drawn, strict=True), strict=True):
        if then != now:
            return f"its forward pass draws random numbers of {name}, which a repetition would draw again"
    if after.generator:
        return f"its forward pass may draw from a private random generator (`{after.generator}`)"
    if any(after.inputs.get(key, marks) != marks for key, marks in before.inputs.items()):
        return CHANGES_INPUT
    return ""


def _changed(before: Mapping[str, Marks], after: Mapping[str, Marks]) -> str:
    return next((name for name, marks in after.items() if before.get(name) != marks), "")


def _of_classes(kind: type[nn.Module]) -> Iterable[tuple[str, Any]]:
    """What classes of the program hold for all their objects, such as a count."""
    for each in reversed(kind.__mro__):
        if issubclass(each, nn.Module) and not each.__module__.startswith("torch."):
            for name, value in vars(each).items():
                if not name.startswith("__") and issubclass(type(value), (int, float, *_CONTAINERS)):
                    yield name, value


def _named_by(forward: Any) -> Iterable[tuple[str, Any]]:
    """Globals that a function's own text names, but for modules, classes and functions."""
    if not isinstance(forward, types.FunctionType) or forward.__module__.startswith("torch."):
        return
    for name in forward.__code__.co_names:
        value = forward.__globals__.get(name)
        if value is not None and not issubclass(type(value), _ENDS):
            yield name, value


def _version(module: nn.Module, buffer: Tensor) -> int:
    """How often a buffer was written; a forward pass does not read the averages over batches that it writes."""
    return 0 if isinstance(module, AveragingNorm) and module.training else version_of(buffer)


class _Looks:
    """Looks at values of a program."""

    def __init__(self) -> None:
        self.generator = ""

    def at(self, root: Any, name: str) -> Marks:
        """Marks of a value, equal if it did not change; containers count by what they hold, tensors by writes."""
        marks: list[Any] = []
        pending: list[tuple[Any, int]] = [(root, 0)]
        seen: set[int] = set()
        while pending and len(marks) < _MOST:
            value, depth = pending.pop()
            kind = cast("type[Any]", type(value))  # not `isinstance`, which would wake proxies that programs hold
            if issubclass(kind, _PLAIN):
                marks.append(value)
            elif issubclass(kind, np.ndarray) and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject:
                marks.append(value.tobytes())
            elif issubclass(kind, Tensor):
                marks.append((id(value), version_of(value)))
            elif id(value) in seen:
                continue
            elif issubclass(kind, _GENERATORS):
                self.generator = self.generator or name
            else:
                seen.add(id(value))
                marks.append((kind, len(value)) if issubclass(kind, _CONTAINERS) else id(value))
                if depth < _DEEPEST:
                    pending += [(each, depth + 1) for each in _parts(value)]
        return tuple(marks)

    def at_inputs(self, root: Any) -> Mapping[int, Marks]:
        """Marks of what is neither remembered for a repetition nor holds anything that is."""
        found: dict[int, Marks] = {}
        pending: list[tuple[Any, int]] = [(root, 0)]
        seen: set[int] = set()
        while pending and len(found) < _MOST:
            value, depth = pending.pop()
            if id(value) in seen or issubclass(type(value), _PLAIN):
                continue
            seen.add(id(value))
            remembered = parts_of(value) if depth < _DEEPEST and not issubclass(type(value), Tensor) else None
            if remembered is None:
                found[id(value)] = self.at(value, "an argument")
            else:
                pending += [(each, depth + 1) for each in remembered.values()]
        return found


def _parts(value: Any) -> list[Any]:
    """What a container or an object of the program holds; code of the program's own is not called."""
    kind = cast("type[Any]", type(value))
    if issubclass(kind, dict):
        return [*dict[Any, Any].keys(value), *dict[Any, Any].values(value)]
    if issubclass(kind, _CONTAINERS):
        return list(value)
    if issubclass(kind, _ENDS):
        return []
    try:
        own = cast("dict[str, Any]", object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return []
    return [*own.keys(), *own.values()]
