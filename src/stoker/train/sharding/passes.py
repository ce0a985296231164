# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Forward passes of a sharded module: those for training by FSDP2, those without gradients by one rank alone.

A pass without gradients never is collective: the rank that makes it fetches what it needs, unit by unit. FSDP2's own
hooks rest meanwhile, and the program's hooks run as ever.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from stoker.core.errors import ExchangeError
from stoker.train import torch_private
from stoker.train.sharding.wholes import ShardedWeight, ShardedWeights


class ShardedPasses:
    """What happens at each forward pass of a module and of those inside it.

    Args:
        weights: of the module.
        keeps: whether fetched weights are kept from one pass without gradients to the next; else a unit's are forgotten
            behind it.
    """

    def __init__(self, weights: ShardedWeights, *, keeps: bool) -> None:
        self._weights, self._keeps = weights, keeps
        self._units: dict[nn.Module, list[ShardedWeight]] = {}
        """Weights of each unit, without those of units inside it."""
        self._inside: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Modules whose passes are looked at."""
        self._rested: set[nn.Module] = set()
        """Units whose hook of FSDP2 before this pass has rested."""
        self._is_training = False
        self._alone: list[nn.Module] = []
        """Modules whose pass without gradients is under way, outermost first."""
        self._replaced: dict[nn.Module, list[tuple[nn.Module, str, nn.Parameter]]] = {}
        self._handles: list[Any] = []

    def watch(self, root: nn.Module, units: Mapping[nn.Module, list[ShardedWeight]]) -> None:
        """Begins.

        Args:
            root: the module.
            units: its units and the weights of each.
        """
        self._units = dict(units)
        self._inside.update(each for each in root.modules() if next(each.parameters(), None) is not None)
        registry: Any = importlib.import_module("torch.nn.modules.module")
        # Torch's hooks for all modules: the program's modules have none of ours, in copies, files and questions.
        self._handles = [
            registry.register_module_forward_pre_hook(self._begin),
            registry.register_module_forward_hook(self._end, always_call=True),
        ]

    def remove(self) -> None:
        """Ends it."""
        while self._handles:
            self._handles.pop().remove()

    @contextmanager
    def training(self) -> Generator[None]:
        """A pass for training, of all ranks."""
        self._weights.begin_forward()
        self._is_training = True
        try:
            yield
        finally:
            self._is_training = False

    def resting_before(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP2's hook before a unit's pass, that does nothing in a pass of one rank alone."""

        @functools.wraps(hook)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._alone:
                self._rested.add(module)
                return None
            return hook(module, *args, **kwargs)

        return call

    def resting_behind(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """FSDP2's hook behind a unit's pass, likewise."""

        @functools.wraps(hook)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module in self._rested:
                self._rested.discard(module)
                return None
            return hook(module, *args, **kwargs)

        return call

    def _begin(self, module: nn.Module, _inputs: Any) -> None:
        if module not in self._inside or self._is_training or torch_private.is_in_backward():
            return
        if torch.is_grad_enabled():
            if self._alone:
                return
            raise ExchangeError(
                f"`{torch_private.original_class(module).__name__}` must be called through DistributedDataParallel for "
                "training, on all ranks, since each rank holds a part of its weights; call it under torch.no_grad() to "
                "evaluate on one rank"
            )
        if not self._alone:
            self._alone.append(module)
            self._fetch(module, self._within(module))
        elif module in self._units and module not in self._replaced:
            self._alone.append(module)
            self._fetch(module, self._units[module])

    def _end(self, module: nn.Module, _inputs: Any, _outputs: Any) -> None:
        if self._alone and self._alone[-1] is module:
            for owner, name, parameter in self._replaced.pop(module, []):
                owner.register_parameter(name, parameter)
            self._alone.pop()

    def _within(self, module: nn.Module) -> list[ShardedWeight]:
        """Weights inside a module, outside of units inside it."""
        if module in self._units:
            return self._units[module]
        inner = {each for each in module.modules() if each in self._units}
        covered = {id(weight) for each in inner for weight in self._units[each]}
        held = {id(each) for each in module.modules()}
        return [
            weight
            for weight in self._weights.weights.values()
            if id(weight) not in covered and any(id(owner) in held for owner, _ in weight.places)
        ]

    def _fetch(self, module: nn.Module, weights: list[ShardedWeight]) -> None:
        replaced = self._replaced[module] = []
        for weight in weights:
            whole = self._weights.seen_whole(weight, keeps=self._keeps)
            for owner, name in weight.places:
                replaced.append((owner, name, getattr(owner, name)))
                owner.register_parameter(name, whole)
