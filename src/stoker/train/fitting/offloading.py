# pyright: reportUnknownMemberType=false
"""Modules whose saved activations lie in host memory between their forward and their backward pass.

Copies begin as soon as autograd saves a tensor. Memory of the device is given up when the next of these modules begins
its forward pass, so that all that runs in between hides the copy; what the last one saved, at its own end. When the
backward pass reaches a module, what the module before it saved begins to come back. What the modules are given, what
they return and their weights stay where they are: others need them.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.records.fitting import LEAST_AWAY_BYTES
from stoker.train.fitting.host_memory import HostCopy
from stoker.train.fitting.recomputing import derived, why_not_changed
from stoker.train.torch_private import identity_of, tree_leaves, version_of, without_functions


class Offloading:
    """What several modules save, kept in host memory until the patches are restored.

    Args:
        modules: in the order of their forward passes, none inside of another.
        patches: for their classes.
        left: called with the place of each that cannot be changed, and the reason.
    """

    def __init__(self, modules: Sequence[nn.Module], patches: Patches, left: Callable[[int, str], None]) -> None:
        self._leaving: _SavedPass | None = None
        self._latest: weakref.ref[_SavedPass] | None = None
        able: list[nn.Module] = []
        for place, module in enumerate(modules):
            if reason := why_not_changed(module):
                left(place, reason)
            else:
                able.append(module)
        for module in able:
            is_ends = (module is able[0], module is able[-1])
            patches.set_class(module, self._class_of(type(module), *is_ends))

    def _class_of(self, original: type[nn.Module], is_first: bool, is_last: bool) -> type[nn.Module]:
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            run: Callable[..., Any] = functools.partial(original.forward, module)
            if not torch.is_grad_enabled():
                return run(*args, **kwargs)
            with without_functions():  # looks at memory, which a recording of the step would take for the program's
                saved = self._begin(module, (args, kwargs), is_first)
            with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
                out = run(*args, **kwargs)
            with without_functions():
                saved.end(out)
                if is_last:
                    saved.leave()
            self._leaving = None if is_last else saved
            return out

        return derived(original, forward)

    def _begin(self, module: nn.Module, given: Any, is_first: bool) -> _SavedPass:
        if self._leaving is not None:
            self._leaving.leave()
            self._leaving = None
        before = None if is_first else self._latest
        stays = [*_tensors(given), *module.parameters(), *module.buffers()]
        saved = _SavedPass(before, stays)
        # Its graph keeps it alive: a pass of an earlier step is gone with its graph.
        self._latest = weakref.ref(saved)
        return saved


def _tensors(values: Any) -> Iterable[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.layout is torch.strided)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A saved tensor: a view of memory that may be away."""

    saved: _SavedPass
    memory: HostCopy
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _SavedPass:
    """What one forward pass of a module saves.

    Args:
        before: that of the module before it.
        stays: tensors whose memory others need.
    """

    def __init__(self, before: weakref.ref[_SavedPass] | None, stays: Iterable[Tensor]) -> None:
        self._before = before
        self._stays = {identity_of(tensor.untyped_storage()) for tensor in stays if tensor.layout is torch.strided}
        self._made: dict[tuple[int, int], HostCopy] = {}
        """Copies by their memory, and how often it was written; until it leaves, it is not used for anything else."""
        self._away: list[weakref.ref[HostCopy]] = []
        """Once the forward pass is over. What autograd has dropped is gone."""

    def pack(self, tensor: Tensor) -> Tensor | _Packed:
        """What autograd keeps in place of a tensor."""
        with without_functions(), torch.no_grad():
            return self._packed(tensor)

    def _packed(self, tensor: Tensor) -> Tensor | _Packed:
        if type(tensor) is nn.Parameter or tensor.layout is not torch.strided:
            return tensor
        storage = tensor.untyped_storage()
        if identity_of(storage) in self._stays or storage.nbytes() < LEAST_AWAY_BYTES:
            return tensor
        key = identity_of(storage), version_of(tensor)
        found = self._made.get(key)
        if found is None:
            count = storage.nbytes() // tensor.element_size()
            found = self._made[key] = HostCopy(tensor.detach().as_strided((count,), (1,), 0))
        return _Packed(self, found, tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, packed: Tensor | _Packed) -> Tensor:
        """The tensor that autograd asks for."""
        if isinstance(packed, Tensor):
            return packed
        with without_functions(), torch.no_grad():
            packed.saved.returning()
            return packed.memory.here().as_strided(packed.size, packed.stride, packed.offset)

    def end(self, out: Any) -> None:
        """The forward pass is over: what it returns stays on the device."""
        stays = {identity_of(tensor.untyped_storage()) for tensor in _tensors(out)}
        self._made = {key: copy for key, copy in self._made.items() if key[0] not in stays}
        self._away = [weakref.ref(copy) for copy in self._made.values()]

    def leave(self) -> None:
        """Gives up the device's memory of all that was saved."""
        for copy in self._made.values():
            copy.leave()
        self._made.clear()

    def returning(self) -> None:
        """The backward pass has come here: what the module before it saved will be asked for next."""
        before = self._before() if self._before is not None else None
        self._before = None
        if before is not None:
            before.fetch()

    def fetch(self) -> None:
        """Begins to bring back what is away and still needed."""
        for reference in self._away:
            copy = reference()
            if copy is not None:
                copy.fetch()
