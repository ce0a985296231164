# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
"""The optimizers of a program whose states ranks hold in parts: seen when they step, save or load.

The program may have made them before that began or afterwards. State dicts are changed by torch's public hooks.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Literal, Protocol

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.core.patching import Patches
from stoker.core.placement.shares import BY_ELEMENT

BY_PARAMETER = (*BY_ELEMENT, "SparseAdam", "Adafactor", "Muon")
"""Those in which each weight depends on its own gradients alone."""

Occasion = Literal["step", "save", "load"]


class StatesOwner(Protocol):
    """What holds parts of the states of optimizers. It must be hashable, and is kept by its maker."""

    def adopts(self, optimizer: Optimizer, occasion: Occasion, /) -> bool:
        """Whether an optimizer that has not been seen by it belongs to it from now on.

        Raises:
            TypeError: it would be, and works in a way that does not allow for it.
        """
        ...

    def settle(self, optimizer: Optimizer, /) -> None:
        """Called before it saves or loads: a step before may have raised."""
        ...

    def before_step(self, optimizer: Optimizer, /) -> None:
        """Called before the program's own hooks."""
        ...

    def after_step(self, optimizer: Optimizer, /) -> None:
        """Called behind the program's own hooks."""
        ...

    def make_whole(self, optimizer: Optimizer, found: dict[str, Any], /) -> dict[str, Any]:
        """A state dict with whole tensors, from one with this rank's parts."""
        ...

    def take_own(self, optimizer: Optimizer, given: dict[str, Any], /) -> dict[str, Any]:
        """A state dict with this rank's parts, from one that is loaded."""
        ...

    def loaded(self, optimizer: Optimizer, /) -> None:
        """Its state has been loaded."""
        ...


_patches = Patches("state dicts of optimizers whose states are held in parts")
_handles: list[Any] = []
_owners: weakref.WeakKeyDictionary[StatesOwner, weakref.WeakSet[Optimizer]] = weakref.WeakKeyDictionary()
"""The optimizers of each."""


def add(owner: StatesOwner) -> None:
    """Shows an owner the optimizers of this process from now on; those of no owner are left alone."""
    _owners[owner] = weakref.WeakSet()
    if _patches.names:
        return
    saving, loading = Optimizer.state_dict, Optimizer.load_state_dict

    @functools.wraps(saving)
    def state_dict(self: Optimizer) -> Any:
        see(self, "save")
        _settle(self)
        return saving(self)

    @functools.wraps(loading)
    def load_state_dict(self: Optimizer, state_dict: Any) -> None:
        see(self, "load")
        _settle(self)
        loading(self, state_dict)

    _patches.set(Optimizer, "state_dict", state_dict)
    _patches.set(Optimizer, "load_state_dict", load_state_dict)
    _handles.append(register_optimizer_step_pre_hook(_before_step))
    _handles.append(register_optimizer_step_post_hook(_after_step))


def discard(owner: StatesOwner) -> None:
    """Shows an owner nothing more; behind the last one, optimizers are torch's alone."""
    _owners.pop(owner, None)
    if not _owners:
        _patches.restore()
        while _handles:
            _handles.pop().remove()


def see(optimizer: Optimizer, occasion: Occasion) -> None:
    """Shows an optimizer to the owners that have not adopted it.

    Raises:
        TypeError: it trains what one of them holds in parts, and can't.
    """
    for owner, adopted in list(_owners.items()):
        if optimizer in adopted or not owner.adopts(optimizer, occasion):
            continue
        adopted.add(optimizer)
        # The owner ends with its model; the hooks stay on an optimizer that lives on.
        known = weakref.ref(owner)
        optimizer.register_state_dict_post_hook(functools.partial(_make_whole, known))
        optimizer.register_load_state_dict_pre_hook(functools.partial(_take_own, known))
        optimizer.register_load_state_dict_post_hook(functools.partial(_loaded, known))


def is_by_element(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...] = ()) -> bool:
    """Whether each element of a weight depends on its own gradients alone.

    Args:
        optimizer: of a program.
        vouched: classes of which the program says so.
    """
    kind = type(optimizer)
    return kind in vouched or kind in _known(BY_ELEMENT)


def is_by_parameter(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...] = ()) -> bool:
    """Whether each weight depends on its own gradients alone; classes that inherit a step of torch's count.

    Args:
        optimizer: of a program.
        vouched: classes of which the program says so.
    """
    kind = type(optimizer)
    return kind in vouched or any(issubclass(kind, each) and kind.step is each.step for each in _known(BY_PARAMETER))


def _known(names: tuple[str, ...]) -> list[type[Optimizer]]:
    return [found for name in names if (found := getattr(torch.optim, name, None)) is not None]


def _of(optimizer: Optimizer) -> list[StatesOwner]:
    return [owner for owner, adopted in list(_owners.items()) if optimizer in adopted]


def _settle(optimizer: Optimizer) -> None:
    for owner in _of(optimizer):
        owner.settle(optimizer)


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    see(optimizer, "step")
    for owner in _of(optimizer):
        owner.before_step(optimizer)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for owner in _of(optimizer):
        owner.after_step(optimizer)


def _serving(known: weakref.ref[StatesOwner], optimizer: Optimizer) -> StatesOwner | None:
    owner = known()
    return owner if owner is not None and optimizer in _owners.get(owner, ()) else None


def _make_whole(known: weakref.ref[StatesOwner], optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any] | None:
    owner = _serving(known, optimizer)
    return None if owner is None else owner.make_whole(optimizer, found)


def _take_own(known: weakref.ref[StatesOwner], optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any] | None:
    owner = _serving(known, optimizer)
    return None if owner is None else owner.take_own(optimizer, given)


def _loaded(known: weakref.ref[StatesOwner], optimizer: Optimizer) -> None:
    owner = _serving(known, optimizer)
    if owner is not None:
        owner.loaded(optimizer)
