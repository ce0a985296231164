# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
"""Optimizers of split layers: their steps are counted, and their state dicts have whole tensors.

They are found when they step, save or load, whether the program made them before the split or afterwards.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.core.patching import Patches
from stoker.train.splitting.parts import SplitPart, SplitParts, all_parts

BY_ELEMENT = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
)  # fmt: skip
"""Classes of ``torch.optim`` in which each element of a weight depends on its own gradients alone."""

_patches = Patches("state dicts of optimizers whose layers are split")
_handles: list[Any] = []


def install() -> None:
    """Sees the optimizers of this process from now on; those without split layers are left alone."""
    if _patches.names:
        return
    saving, loading = Optimizer.state_dict, Optimizer.load_state_dict

    @functools.wraps(saving)
    def state_dict(self: Optimizer) -> Any:
        see(self)
        return saving(self)

    @functools.wraps(loading)
    def load_state_dict(self: Optimizer, state_dict: Any) -> None:
        see(self)
        loading(self, state_dict)

    _patches.set(Optimizer, "state_dict", state_dict)
    _patches.set(Optimizer, "load_state_dict", load_state_dict)
    _handles.append(register_optimizer_step_pre_hook(_before_step))
    _handles.append(register_optimizer_step_post_hook(_after_step))


def remove() -> None:
    """Leaves all optimizers to torch."""
    _patches.restore()
    while _handles:
        _handles.pop().remove()


def see(optimizer: Optimizer) -> None:
    """Serves an optimizer's state, if it trains split layers.

    Raises:
        TypeError: it is not known to work by element.
    """
    for parts in list(all_parts):
        if not parts.held_by(optimizer) or any(each is optimizer for each in parts.optimizers):
            continue
        if not is_by_element(optimizer, parts.by_element):
            raise TypeError(
                f"`{type(optimizer).__name__}` must work by element to train split layers, and is not known to: it "
                "would see parts of weights and gradients; use one of torch.optim such as AdamW, or name its class in "
                "split(..., by_element=[...])"
            )
        parts.optimizers.append(optimizer)
        optimizer.register_state_dict_post_hook(functools.partial(_make_whole, parts))
        optimizer.register_load_state_dict_pre_hook(functools.partial(_take_own, parts))
        optimizer.register_load_state_dict_post_hook(functools.partial(_loaded, parts))


def is_by_element(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...] = ()) -> bool:
    """Whether each element of a weight depends on its own gradients alone.

    Args:
        optimizer: of a program.
        vouched: classes of which the program says so.
    """
    kind = type(optimizer)
    return kind in vouched or kind in [getattr(torch.optim, name, None) for name in BY_ELEMENT]


def _before_step(optimizer: Optimizer, *_: Any) -> None:
    see(optimizer)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    for parts in list(all_parts):
        if any(each is optimizer for each in parts.optimizers):
            parts.change_weights()


def _make_whole(parts: SplitParts, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
    """A state dict with whole tensors."""

    def whole(part: SplitPart, name: str, value: Any) -> Any:
        is_part = isinstance(value, Tensor) and value.shape == part.parameter.shape
        return parts.whole(part, name, value) if is_part else value

    return _mapped(parts, optimizer, found, whole)


def _take_own(parts: SplitParts, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
    """A state dict with this rank's parts."""

    def own(part: SplitPart, _name: str, value: Any) -> Any:
        is_whole = isinstance(value, Tensor) and tuple(value.shape) == part.whole_shape
        return part.cut(value, parts.exchange.rank) if is_whole else value

    return _mapped(parts, optimizer, given, own)


def _loaded(parts: SplitParts, _optimizer: Optimizer) -> None:
    parts.change_weights()


def _mapped(parts: SplitParts, optimizer: Optimizer, given: dict[str, Any], change: Any) -> dict[str, Any]:
    held = parts.held_by(optimizer)
    numbers = [number for group in given["param_groups"] for number in group["params"]]
    state = dict(given["state"])
    for place, part in held.items():
        if place < len(numbers) and numbers[place] in state:
            values = state[numbers[place]]
            state[numbers[place]] = {name: change(part, name, value) for name, value in values.items()}
    return {**given, "state": state}
