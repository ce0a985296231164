# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Optimizers that hold less: their updates one parameter after another, or inside the backward pass.

Both leave what an optimizer's states and groups hold as it is, so that a checkpoint is that of the plain program.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def optimizers_of(model: nn.Module) -> list[Optimizer]:
    """Optimizers of this process that update parameters of a model, in the order in which they were made."""
    own = {id(parameter) for parameter in model.parameters()}
    # By type rather than `isinstance`, which would wake the lazy modules and proxies that programs hold.
    alive = [cast("Optimizer", each) for each in gc.get_objects() if issubclass(type(each), Optimizer)]
    # One of another library that stands for an optimizer has the other's groups, and no hooks.
    alive = [each for each in alive if "param_groups" in vars(each)]
    return [each for each in alive if any(id(parameter) in own for parameter in _parameters(each))]


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class OneByOne:
    """Updates of one parameter after another, by ``foreach=False`` during each step of an optimizer.

    The groups are as the program made them between steps: a checkpoint has them.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._before: list[tuple[dict[str, Any], Any]] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._set),
            optimizer.register_step_post_hook(self._restore),
        ]

    def _set(self, *_: Any) -> None:
        self._restore()  # what a step that raised has left
        for group in self._optimizer.param_groups:
            if "foreach" in group and not group.get("fused"):
                self._before.append((group, group["foreach"]))
                group["foreach"] = False

    def _restore(self, *_: Any) -> None:
        for group, value in self._before:
            group["foreach"] = value
        self._before.clear()

    def close(self) -> None:
        """Ends it."""
        for handle in self._handles:
            handle.remove()
        self._restore()


class SingleUpdates:
    """Updates of one parameter at a time, as an optimizer's step makes them.

    Args:
        optimizer: one that updates each parameter by its own gradient and state alone.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        step: Any = type(optimizer).step
        # Without torch's wrapper, which would call hooks for each parameter.
        self._step: Callable[[Optimizer], Any] = step.__wrapped__ if getattr(step, "hooked", False) else step

    def update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        """Updates one parameter of a group by its gradient."""
        optimizer: Any = self._optimizer
        groups = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            with torch.no_grad():
                self._step(optimizer)
        finally:
            optimizer.param_groups = groups


Around = Callable[[Tensor], contextlib.AbstractContextManager[None]]


class UsedUp:
    """Applies each gradient as soon as the backward pass has made it, and frees it.

    The program's own ``step()`` finds no gradients then; what it counts, and its hooks, go on. Learning rates are those
    at the time of the backward pass, which the program must not change before its step.

    Args:
        optimizer: one that updates each parameter by its own gradient and state alone.
        around: surrounds the update of a parameter.
    """

    def __init__(self, optimizer: Optimizer, around: Around = lambda _: contextlib.nullcontext()) -> None:
        self._optimizer, self._around = optimizer, around
        self._single = SingleUpdates(optimizer)
        self._groups: dict[int, dict[str, Any]] = {}
        self._handles: list[Any] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self._groups[id(parameter)] = group
                    self._handles.append(parameter.register_post_accumulate_grad_hook(self._use))
        self._is_ordered = False
        self._handles.append(optimizer.register_step_post_hook(self._order))

    def _use(self, parameter: Tensor) -> None:
        with self._around(parameter):
            self._single.update(parameter, self._groups[id(parameter)])
        parameter.grad = None

    def _order(self, *_: Any) -> None:
        """Puts the states that the first backward pass made into the order of a step's: files are written in it."""
        if self._is_ordered:  # the hook stays: torch is going through its hooks now
            return
        self._is_ordered = True
        state = self._optimizer.state
        known = [parameter for parameter in _parameters(self._optimizer) if parameter in state]
        state.update([(parameter, state.pop(parameter)) for parameter in known])

    def close(self) -> None:
        """Ends it."""
        for handle in self._handles:
            handle.remove()
