# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Splits layers of a program that trains, between two of its steps, and makes them whole again.

Weights, gradients and the optimizers' states are cut in place: the program's optimizers, their groups and the module in
DDP stay the objects that they are. The weights leave DDP's reducer, which is made again around them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.train.program import reducers
from stoker.train.splitting import norms
from stoker.train.splitting.calling import parameters_of, parts_of, replace_layers
from stoker.train.splitting.layers import SplitKind
from stoker.train.splitting.parts import SplitPart, SplitParts, all_parts, put, split_models
from stoker.train.splitting.planning import check
from stoker.train.state import optimizers

Register = Callable[[DistributedDataParallel], object]
"""Gives a module that is made again the hook of the one that it stands for."""


@dataclass(slots=True)
class _Kept:
    """A parameter as it was, until all ranks have cut theirs."""

    parameter: nn.Parameter
    data: Tensor
    gradient: Tensor | None
    states: list[tuple[dict[str, Any], dict[str, Any]]]
    """The state of each optimizer, and what it was."""


class SplitSwitch:
    """Layers of one module that are to be split, and are until :meth:`join`.

    Args:
        ddp: the program's module.
        plan: methods by paths of layers.
        register: see :data:`Register`.
        trained_by: the optimizers that step the module's weights.
    """

    def __init__(
        self, ddp: DistributedDataParallel, plan: Mapping[str, SplitKind], register: Register,
        trained_by: Sequence[Optimizer],
    ) -> None:  # fmt: skip
        self.plan = dict(plan)
        self._find_ddp, self._register, self._optimizers = weakref.ref(ddp), register, list(trained_by)
        self._model = cast("nn.Module", ddp.module)
        self._layers: dict[str, nn.Module] = {path: self._model.get_submodule(path) for path in plan}
        self._weights = parameters_of(self._layers, self.plan)
        self._group: Any = ddp.process_group
        self._parts: SplitParts | None = None
        self._kept: list[_Kept] = []
        self._patches = Patches("layers that are split in a running program")
        self.is_split = False

    @property
    def _ddp(self) -> DistributedDataParallel:
        # Not held: DDP's reducer holds its hook, and so us, where Python's collector does not see it.
        found = self._find_ddp()
        assert found is not None
        return found

    @property
    def weights(self) -> list[nn.Parameter]:
        """Those that are cut."""
        return self._weights

    @property
    def sent_bytes(self) -> int:
        """What this rank has sent of activations, so far."""
        return 0 if self._parts is None else self._parts.exchange.sent_bytes

    def prepare(self) -> None:
        """Connects the ranks. Collective.

        Raises:
            ValueError: the plan does not fit the module.
            ExchangeError: the ranks can't connect.
        """
        check(self._model, self.plan, dist.get_world_size(self._group))
        self._parts = parts_of(self._group)

    def split(self) -> None:
        """Splits the layers on this rank, between two steps; :meth:`settle` or :meth:`undo` follows on all ranks."""
        assert self._parts is not None
        self._kept = [self._noted(parameter) for parameter in self._weights]
        norms.install()
        self._remake(self._weights)
        split_models.add(self._model)
        self.is_split = True
        replace_layers(self._model, self._layers, self.plan, self._parts)
        for path, layer in self._layers.items():
            # Who has kept the layer itself gets the split one.
            self._patches.set(layer, "forward", self._model.get_submodule(path).forward, adds=True)
        parts = {id(part.parameter): part for part in self._parts.parts.values()}
        for kept in self._kept:
            self._cut(kept, parts[id(kept.parameter)])
        for optimizer in self._optimizers:
            optimizers.see(optimizer, "step")

    def _cut(self, kept: _Kept, part: SplitPart) -> None:
        rank, shape = dist.get_rank(self._group), kept.data.shape
        if kept.gradient is not None:
            kept.parameter.grad = part.cut(kept.gradient, rank)
        for state, before in kept.states:
            state.update({
                name: part.cut(value, rank)
                for name, value in before.items()
                if isinstance(value, Tensor) and value.shape == shape
            })  # fmt: skip

    def settle(self) -> None:
        """All ranks have split their layers: what was whole is let go."""
        self._kept.clear()

    def undo(self) -> None:
        """Takes back what this rank has split, or has begun to; not collective, before :meth:`settle`."""
        kept, self._kept = self._kept, []
        if self.is_split:
            self._leave()
            for each in kept:
                put(each.parameter, each.data)
                each.parameter.grad = each.gradient
                for state, before in each.states:
                    state.update(before)
            self._remake([])
        self.close()

    def join(self) -> None:
        """Makes all layers whole again, with their gradients and the optimizers' states. Collective, between two steps.

        Raises:
            ExchangeError: ranks do different things.
        """
        assert self._parts is not None
        parts = self._parts
        every = list(parts.parts.values())
        # The program may have made others since.
        trained_by = list({id(each): each for each in (*self._optimizers, *parts.optimizers)}.values())
        parts.exchange.agree("making layers whole", sum(part.parameter.grad is not None for part in every))
        for part in every:
            parameter = part.parameter
            whole, gradient = parts.gathered(part, parameter.data), parameter.grad
            joined = None if gradient is None else parts.gathered(part, gradient)
            for optimizer in trained_by:
                state: dict[str, Any] = optimizer.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, Tensor) and value.shape == parameter.shape:
                        state[name] = parts.gathered(part, value)
            put(parameter, whole)
            parameter.grad = joined
        self._leave()
        self._remake([])
        self.close()

    def _leave(self) -> None:
        """Puts the program's own layers back."""
        self._patches.restore()
        for path, layer in self._layers.items():
            parent, _, name = path.rpartition(".")
            layer.train(self._model.get_submodule(path).training)
            self._model.get_submodule(parent).register_module(name, layer)
        split_models.discard(self._model)
        self.is_split = False

    def close(self) -> None:
        """Serves no parts any more."""
        parts, self._parts = self._parts, None
        if parts is not None:
            parts.parts.clear()
            parts.optimizers.clear()
            all_parts.discard(parts)
            if parts.states is not None:
                optimizers.discard(parts.states)
            if parts.service is not None:
                parts.service.close()
            dist.destroy_process_group(parts.exchange.group)
        if not list(all_parts):
            norms.remove()

    def _remake(self, without: Sequence[nn.Parameter]) -> None:
        made = reducers.made_again(self._ddp, without)
        self._register(made)
        reducers.take_over(self._ddp, made)

    def _noted(self, parameter: nn.Parameter) -> _Kept:
        states = [
            (each.state[parameter], dict(each.state[parameter])) for each in self._optimizers if parameter in each.state
        ]
        return _Kept(parameter, parameter.data, parameter.grad, states)
