# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (a tensor subclass: torch's hooks for it are untyped)
"""A deferred tensor: a placeholder for a value inside the cut until something reads it.

Its shape, type and strides are real; its elements are computed, by the original calls on the original batch, when
anything but the recorded calls uses it. Where torch allows, the object then *becomes* the plain tensor (its contents
are swapped), so that the program holds an ordinary tensor from then on. None outlives the cut's part of a step.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from stoker.core.patching import Patches
from stoker.graph.dataflow import Value
from stoker.graph.torch_private import CAPSULE_PLACES, capsule_maker, make_wrapper, owners_of, unseen


class Maker(Protocol):
    """Makes the plain tensors of values."""

    def make(self, number: int) -> torch.Tensor:
        """The plain tensor of a value."""
        ...

    def settle(self, number: int, tensor: torch.Tensor) -> None:
        """Makes ``tensor`` that value: its object takes over the result of :meth:`make`."""
        ...


_OURS = frozenset({"_maker", "_number", "_real"})
"""Attributes of a deferred tensor; any others are the program's."""
_NUM_OURS, _count_weak = len(_OURS), weakref.getweakrefcount


class Deferred(torch.Tensor):
    """A value inside the cut."""

    _maker: Maker
    _number: int
    _real: torch.Tensor | None

    @staticmethod
    def __new__(cls: Any, value: Value, maker: Maker) -> Deferred:  # noqa: D102
        with unseen():
            self = make_wrapper(
                cls, value.shape, strides=value.stride, dtype=getattr(torch, value.dtype), device=torch.device("cpu")
            )
        self._maker, self._number, self._real = maker, value.number, None
        return self

    def __init__(self, value: Value, maker: Maker) -> None: ...

    def is_fresh(self) -> bool:
        """Whether it can stand for a value of a further step: not made, and without marks of the program."""
        attributes = vars(self)
        if attributes["_real"] is not None or len(attributes) != _NUM_OURS:
            return False
        return not _count_weak(self)  # else a program's cache would take it for the tensor of an earlier step

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A use that no mode saw: in another thread, or inside torch's own Python code."""
        return func(*realise(args), **realise(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A use from compiled code: operators see the real tensor."""
        return func(*realise(args), **realise(kwargs or {}))


def deferred_in(part: Any) -> Iterator[Deferred]:
    """The deferred tensors in the arguments of a call."""
    if type(part) is Deferred:
        yield part
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from deferred_in(inner)
    elif isinstance(part, dict):
        yield from deferred_in(list(part.values()))
    elif isinstance(part, slice):
        yield from deferred_in((part.start, part.stop, part.step))


def realise(part: Any) -> Any:
    """Arguments with plain tensors in the place of deferred ones."""
    if type(part) is Deferred:
        return become_real(part)
    if isinstance(part, list):
        return [realise(inner) for inner in part]
    if isinstance(part, tuple):
        inner = [realise(inner) for inner in part]
        return type(part)(*inner) if hasattr(part, "_fields") else type(part)(inner)
    if isinstance(part, dict):
        return {name: realise(inner) for name, inner in part.items()}
    if isinstance(part, slice):
        return slice(realise(part.start), realise(part.stop), realise(part.step))
    return part


def become_real(deferred: Deferred) -> torch.Tensor:
    """The plain tensor of a deferred one: the same object wherever torch can swap its contents."""
    with unseen():
        real, maker, number = deferred._real, deferred._maker, deferred._number
        if real is None:
            real = maker.make(number)
        if _swap(deferred, real):
            maker.settle(number, deferred)
            return deferred
        deferred._real = real
        return real


def _swap(deferred: Deferred, real: torch.Tensor) -> bool:
    if type(real) is not torch.Tensor or use_count(real) > 1 or use_count(deferred) > 1 or vars(real):
        return False
    own = {name: value for name, value in vars(deferred).items() if name not in _OURS}
    try:
        torch.utils.swap_tensors(deferred, real)
    except (RuntimeError, TypeError):
        return False
    vars(deferred).update(own)
    return True


PATCHES = Patches("records steps for the cut")
"""Patches for uses that no torch function mode sees, while loaders are observed."""


def guard_capsules() -> None:
    """Makes ``to_dlpack``, which no torch function mode sees, return the memory of the plain tensor.

    Note: before the program's own imports, which may take the function itself.
    """
    stock = capsule_maker()
    if getattr(stock, "__wrapped__", None) is not None:
        return

    @functools.wraps(stock)
    def to_dlpack(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        tensor.data_ptr()  # a call that modes see, and by which memory is handed out
        return stock(become_real(tensor) if type(tensor) is Deferred else tensor, *args, **kwargs)

    for owner, name in CAPSULE_PLACES:
        if getattr(owner, name, None) is stock:
            PATCHES.set(owner, name, to_dlpack)


def use_count(tensor: torch.Tensor) -> int:
    """Owners of a tensor, Python being one and autograd's graphs others."""
    with unseen():
        return owners_of(tensor)
