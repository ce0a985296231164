# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Optimizers whose states lie in host memory between updates, which are made one parameter after another.

The states of the next parameter come while one is updated. A checkpoint has the states as the plain program has them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from stoker.records.fitting import LEAST_AWAY_BYTES
from stoker.train.fitting.host_memory import HostCopy
from stoker.train.fitting.optimizing import SingleUpdates


class StatesAway:
    """The states of one optimizer in host memory, until :meth:`close`.

    Args:
        optimizer: one that updates each parameter by its own gradient and state alone.
        updates: whether it makes the updates itself, at the optimizer's step; otherwise another does, :meth:`around`.
    """

    def __init__(self, optimizer: Optimizer, *, updates: bool = True) -> None:
        self._optimizer = optimizer
        self._single = SingleUpdates(optimizer)
        self._copies: dict[Tensor, dict[str, HostCopy]] = {}
        self._hosts: dict[int, HostCopy] = {}
        """The same by the identity of what lies in host memory."""
        self._taken: list[tuple[Tensor, Tensor]] = []
        """Gradients that are kept from the optimizer's own step, which finds nothing to do."""
        self._handles: list[Any] = [
            optimizer.register_state_dict_post_hook(self._show),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]
        if updates:
            self._handles += [
                optimizer.register_step_pre_hook(self._update), optimizer.register_step_post_hook(self._restore),
            ]  # fmt: skip
        self._loaded(optimizer)

    def is_away(self, tensor: Tensor) -> bool:
        """Whether a tensor is a state in host memory."""
        return id(tensor) in self._hosts

    def _update(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Updates all parameters in place of the optimizer's step, which begins behind this."""
        self._restore()  # what a step that raised has left
        args, kwargs = _computed(args, kwargs)
        due = [
            (parameter, group) for group in optimizer.param_groups for parameter in group["params"]
            if parameter.grad is not None
        ]  # fmt: skip
        for place, (parameter, group) in enumerate(due):
            if place + 1 < len(due):
                self._fetch(due[place + 1][0])
            with self.around(parameter):
                self._single.update(parameter, group)
            self._taken.append((parameter, parameter.grad))
            parameter.grad = None
        return args, kwargs

    def _restore(self, *_: Any) -> None:
        for parameter, gradient in self._taken:
            if parameter.grad is None:
                parameter.grad = gradient
        self._taken.clear()

    def _fetch(self, parameter: Tensor) -> None:
        for copy in self._copies.get(parameter, {}).values():
            copy.fetch()

    @contextlib.contextmanager
    def around(self, parameter: Tensor) -> Generator[None]:
        """Runs the block, an update of a parameter, with its states on the device."""
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        for name, copy in self._copies.get(parameter, {}).items():
            if state.get(name) is copy.host:
                state[name] = copy.here()
        try:
            yield
        finally:
            self._send(parameter)

    def _send(self, parameter: Tensor) -> None:
        """Sends the states of a parameter away, those that are new among them."""
        state: dict[str, Any] = self._optimizer.state.get(parameter, {})
        known = self._copies.setdefault(parameter, {})
        for name, value in list(state.items()):
            copy = known.get(name)
            if not isinstance(value, Tensor) or (copy is not None and value is copy.host):
                continue
            if not _is_large(value) or value.device != parameter.device:
                continue
            if copy is not None and (copy.host.dtype, copy.host.size(), copy.host.stride()) == (
                value.dtype, value.size(), value.stride(),
            ):  # fmt: skip
                copy.update(value)
            else:
                copy = known[name] = HostCopy(value)
                self._hosts[id(copy.host)] = copy
            copy.leave()
            state[name] = copy.host

    def _loaded(self, optimizer: Optimizer) -> None:
        self._forget()
        for parameter in list(optimizer.state):
            self._send(parameter)

    def _show(self, optimizer: Optimizer, shown: dict[str, Any]) -> dict[str, Any]:
        """The state dict with states on the device of their parameters, in new tables."""

        def seen(value: Any) -> Any:
            copy = self._hosts.get(id(value))
            return value if copy is None else copy.shown()

        tables: dict[Any, dict[str, Any]] = shown["state"]
        states = {key: {name: seen(value) for name, value in table.items()} for key, table in tables.items()}
        return {**shown, "state": states}

    def close(self) -> None:
        """Ends it: all states are on the device again."""
        for handle in self._handles:
            handle.remove()
        self._restore()
        for parameter, copies in self._copies.items():
            state: dict[str, Any] = self._optimizer.state.get(parameter, {})
            for name, copy in copies.items():
                if state.get(name) is copy.host:
                    state[name] = copy.here()
        self._forget()

    def _forget(self) -> None:
        self._copies.clear()
        self._hosts.clear()


def _is_large(value: Tensor) -> bool:
    # Memory without gaps, so that a tensor of the same strides holds it.
    return value.layout is torch.strided and value.nbytes >= LEAST_AWAY_BYTES and value.is_contiguous()


def _computed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a step whose closure has been called: it computes the gradients, and is called once."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    if "closure" in kwargs:
        return args, {**kwargs, "closure": lambda: loss}
    return tuple((lambda: loss) if place == 1 else value for place, value in enumerate(args)), kwargs
