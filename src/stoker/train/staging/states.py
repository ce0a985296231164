# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Optimizers of a module in stages: each rank steps its stage; state dicts have the states of all."""

from __future__ import annotations

import functools
import weakref
import zlib
from typing import Any

from torch import nn
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.train import torch_private
from stoker.train.staging.links import StageLinks
from stoker.train.staging.weights import StagedWeight, StagedWeights
from stoker.train.state.optimizers import Occasion, is_by_parameter

_patches = Patches("loads of modules whose layers are in stages")
_all_weights: weakref.WeakSet[StagedWeights] = weakref.WeakSet()


class StageStates:
    """What sees the optimizers of one module.

    Args:
        weights: of the module.
        links: between the ranks.
        by_parameter: classes of optimizers that the program vouches for.
    """

    def __init__(self, weights: StagedWeights, links: StageLinks, by_parameter: tuple[type[Optimizer], ...]) -> None:
        self._weights, self._links, self._by_parameter = weights, links, by_parameter
        self._handles: weakref.WeakKeyDictionary[Optimizer, tuple[Any, ...]] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Leaves the optimizers that it has seen."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()

    def adopts(self, optimizer: Optimizer, _occasion: Occasion) -> bool:
        """Whether an optimizer trains the weights; raises ``TypeError`` if it is not known to work by weight."""
        held = self._weights.held_by(optimizer)
        if not held:
            return False
        if reason := why_not(optimizer, self._by_parameter):
            raise TypeError(reason)
        words = f"{type(optimizer).__name__} {zlib.crc32(' '.join(each.name for each in held.values()).encode()):08x}"
        alike = sum(each.startswith(words) for each in self._weights.optimizers)
        self._weights.optimizers[f"{words} {alike}"] = optimizer
        self._drop(optimizer, held)
        return True

    def settle(self, _optimizer: Optimizer) -> None:
        """Nothing: a step that raises leaves stages as they are."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Puts what begins and ends a step behind and before the program's own hooks, which may read all weights."""
        for handle in self._handles.pop(optimizer, ()):
            handle.remove()
        self._handles[optimizer] = (
            optimizer.register_step_pre_hook(self._begin),
            torch_private.first_after_step(optimizer, self._end),
        )

    def after_step(self, _optimizer: Optimizer) -> None:
        """Nothing: it was counted before the program's own hooks."""

    def _begin(self, optimizer: Optimizer, *_: Any) -> None:
        """Waits for all ranks: none changes what another one may still ask for. Collective."""
        self._links.agree(f"a step of {self._key(optimizer)}", self._weights.version)

    def _end(self, *_: Any) -> None:
        self._weights.change()

    def loaded(self, _optimizer: Optimizer) -> None:
        """Counts it."""
        self._weights.change()

    def make_whole(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict with the states of all stages. Of this rank alone."""
        numbers = [number for group in found["param_groups"] for number in group["params"]]
        key, state = self._key(optimizer), dict(found["state"])
        held = self._weights.held_by(optimizer)
        whole: dict[Any, Any] = {}
        for place, number in enumerate(numbers):
            weight = held.get(place)
            if weight is None or self._weights.own in weight.stages:
                values = state.pop(number, None)
            else:
                values = self._weights.fetched_state(weight, key)
            if values:
                whole[number] = values
        return {**found, "state": {**whole, **state}}

    def take_own(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """A state dict with the states of this rank's stage."""
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        state = dict(given["state"])
        for place, weight in self._weights.held_by(optimizer).items():
            if place < len(numbers) and self._weights.own not in weight.stages:
                state.pop(numbers[place], None)
        return {**given, "state": state}

    def _key(self, optimizer: Optimizer) -> str:
        return next(key for key, each in self._weights.optimizers.items() if each is optimizer)

    def _drop(self, optimizer: Optimizer, held: dict[int, StagedWeight]) -> None:
        for weight in held.values():
            if self._weights.own not in weight.stages:
                optimizer.state.pop(weight.parameter, None)


def why_not(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...]) -> str:
    """Why an optimizer can't train layers in stages; empty if it can."""
    if is_by_parameter(optimizer, vouched):
        return ""
    return (
        f"`{type(optimizer).__name__}` must update each weight by its own gradients alone to train layers in stages, "
        "and is not known to; use one of torch.optim such as AdamW, or name its class in by_parameter"
    )


def watch_loads(weights: StagedWeights) -> None:
    """Lets ``load_state_dict`` of modules keep this rank's weights alone."""
    _all_weights.add(weights)
    if _patches.names:
        return
    original = nn.Module.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = {id(each) for each in self.parameters()}
        for weights in list(_all_weights):
            if any(id(each) in own for each in weights.by_parameter):
                with weights.loading():
                    return original(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    _patches.set(nn.Module, "load_state_dict", load_state_dict)


def leave_loads(weights: StagedWeights) -> None:
    """Ends it; behind the last one, loads are torch's alone."""
    _all_weights.discard(weights)
    if not _all_weights:
        _patches.restore()
