# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is seen of an averaged model outside of training: the weights of the last mean, on each rank alone.

An evaluation, a checkpoint or a read of the state needs no other rank, so that rank 0 may do it alone. Between two
averages it sees the last mean, which is at most a period old and the same on all ranks, not this rank's own weights,
which may know little beyond its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.train.averaging.contents import FlatCopy
from stoker.train.averaging.replica import AveragedReplica


class MeansSeen:
    """Shows the last means of a replica to evaluations and state dicts, from now until :meth:`close`.

    An evaluation is a call of the model in ``eval()`` mode without gradients. Its tensors point to the means while the
    call runs; no value is copied, and a backward pass that is under way keeps what it saved.

    Args:
        module: the model, without DDP around it.
        optimizers: that train it.
        replica: holds the means.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer], replica: AveragedReplica) -> None:
        self._replica = replica
        self._optimizers: list[Optimizer] = []
        self._own: list[tuple[Tensor, Tensor]] = []
        self._handles: list[Any] = [
            module.register_forward_pre_hook(_Hook(self._before)),
            module.register_forward_hook(_Hook(self._after), always_call=True),
        ]
        for each in module.modules():
            self._handles.append(each.register_state_dict_post_hook(_Hook(self._in_state_dict)))
            self._handles.append(each.register_load_state_dict_post_hook(_Hook(self._loaded)))
        for optimizer in optimizers:
            self.add(optimizer)

    def add(self, optimizer: Optimizer) -> None:
        """Serves another optimizer's ``state_dict()``."""
        if all(optimizer is not each for each in self._optimizers):
            self._optimizers.append(optimizer)
            self._handles.append(optimizer.register_state_dict_post_hook(_Hook(self._in_optimizer_state)))

    def close(self) -> None:
        """Undoes all."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # Evaluation.

    def _before(self, module: nn.Module, _args: Any) -> None:
        if module.training or torch.is_grad_enabled() or self._own:
            return
        self._replica.look()
        if self._replica.apart:
            for tensor, view in self._pairs():
                self._own.append((tensor, tensor.data))
                tensor.data = view

    def _after(self, *_: Any) -> None:
        while self._own:
            tensor, own = self._own.pop()
            tensor.data = own

    # State.

    def _in_state_dict(self, module: nn.Module, found: dict[str, Any], prefix: str, _metadata: Any) -> None:
        if not _direct(module):
            return
        self._replica.look()
        if self._replica.apart and not self._own:
            means = {id(tensor): view for tensor, view in self._pairs()}
            for name, tensor in _direct(module):
                if id(tensor) in means and prefix + name in found:
                    # A view would be saved with all that lies next to it.
                    found[prefix + name] = means[id(tensor)].clone()

    def _in_optimizer_state(self, _optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any] | None:
        self._replica.look()
        if not (self._replica.apart and self._replica.states_are_means):
            return None
        states = self._replica.contents.states
        means = {id(tensor): view for tensor, view in zip(states.tensors, states.views, strict=True)}
        state: dict[Any, Any] = {}
        for number, values in found["state"].items():
            state[number] = {
                name: means[id(value)].clone() if id(value) in means else value for name, value in values.items()
            }
        return {**found, "state": state}

    def _loaded(self, module: nn.Module, _keys: Any) -> None:
        """Loaded weights are the mean that the next changes count from; all ranks load the same."""
        held = {id(tensor) for _, tensor in _direct(module)}
        with torch.no_grad():
            for tensor, view in self._pairs():
                if id(tensor) in held:
                    view.copy_(tensor)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        contents = self._replica.contents
        copies: tuple[FlatCopy, ...] = (contents.weights, contents.buffers)
        return [pair for copy in copies for pair in zip(copy.tensors, copy.views, strict=True)]


def _direct(module: nn.Module) -> list[tuple[str, Tensor]]:
    """A module's parameters and buffers without those of the modules inside."""
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


class _Hook:
    """A hook of a module or an optimizer; in a copy, or in one that was pickled, it does nothing.

    A copy of the model is another model, which is not averaged. Not a function: torch sets an attribute of it.
    """

    def __init__(self, act: Callable[..., Any] | None = None) -> None:
        self._act = act

    def __call__(self, *arguments: Any) -> Any:
        return self._act(*arguments) if self._act is not None else None

    def __deepcopy__(self, _memo: dict[int, Any]) -> _Hook:
        return _Hook()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return _Hook, ()
