# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""State dicts of a sharded module and of its optimizers: whole tensors of plain torch, on one rank alone."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from stoker.train.sharding.wholes import ShardedWeight, ShardedWeights
from stoker.train.state.agreeing import agreed
from stoker.train.state.optimizers import Occasion, is_by_element


class WeightStates:
    """What state dicts of a sharded module and of its optimizers hold.

    Args:
        weights: of the module.
        group: of the ranks.
        by_element: classes of optimizers that the program vouches for.
    """

    def __init__(
        self, weights: ShardedWeights, group: dist.ProcessGroup, by_element: tuple[type[Optimizer], ...]
    ) -> None:
        self._weights, self._group, self._by_element = weights, group, by_element

    def watch_modules(self) -> None:
        """Changes the state dicts of all modules with weights."""
        owners: dict[nn.Module, dict[str, ShardedWeight]] = {}
        for weight in self._weights.weights.values():
            for owner, name in weight.places:
                owners.setdefault(owner, {})[name] = weight
        for owner, its in owners.items():
            _ModuleStates(self._weights, its).watch(owner)

    # What sees optimizers.

    def adopts(self, optimizer: Optimizer, _occasion: Occasion) -> bool:
        """Whether an optimizer trains the weights; raises ``TypeError`` if it is not known to work by element."""
        if not any(True for _ in self._weights.held_by(optimizer)):
            return False
        if reason := why_not(optimizer, self._by_element):
            raise TypeError(reason)
        self._weights.optimizers.append(optimizer)
        return True

    def settle(self, _optimizer: Optimizer) -> None:
        """Nothing: a step that raises leaves shares as they are."""

    def before_step(self, optimizer: Optimizer) -> None:
        """Waits for all ranks: none changes what another one may still ask for. Collective."""
        count = sum(1 for _ in self._weights.held_by(optimizer))
        subject = f"a step of {type(optimizer).__name__} on {count} weights"
        agreed(
            self._group, subject, self._weights.version, where="where weights are sharded",
            then="step alike on all ranks",
        )  # fmt: skip

    def after_step(self, _optimizer: Optimizer) -> None:
        """Counts it."""
        self._weights.change_weights()

    def loaded(self, _optimizer: Optimizer) -> None:
        """Counts it."""
        self._weights.change_weights()

    def make_whole(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict with whole tensors. Of this rank alone."""

        def whole(weight: ShardedWeight, name: str, value: Any) -> Any:
            return self._weights.whole(weight, name, value) if isinstance(value, DTensor) else value

        return self._mapped(optimizer, found, whole)

    def take_own(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """A state dict with this rank's rows."""

        def own(weight: ShardedWeight, _name: str, value: Any) -> Any:
            is_whole = isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == weight.shape
            return self._weights.sharded(weight, value) if is_whole else value

        return self._mapped(optimizer, given, own)

    def _mapped(self, optimizer: Optimizer, given: dict[str, Any], change: Any) -> dict[str, Any]:
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        state = dict(given["state"])
        for place, weight in self._weights.held_by(optimizer):
            if place < len(numbers) and numbers[place] in state:
                values = state[numbers[place]]
                state[numbers[place]] = {name: change(weight, name, value) for name, value in values.items()}
        return {**given, "state": state}


def why_not(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...]) -> str:
    """Why an optimizer can't train sharded weights; empty if it can."""
    if is_by_element(optimizer, vouched):
        return ""
    return (
        f"`{type(optimizer).__name__}` must work by element to train sharded weights, and is not known to: it would "
        "see some rows of weights and gradients; use one of torch.optim such as AdamW, or name its class in by_element"
    )


class _ModuleStates:
    """The state dict of one module inside the sharded one."""

    def __init__(self, weights: ShardedWeights, own: dict[str, ShardedWeight]) -> None:
        self._weights, self._own = weights, own

    def watch(self, module: nn.Module) -> None:
        # Torch marks the function, which a method does not allow.
        module.register_state_dict_post_hook(functools.partial(self._make_whole))
        module.register_load_state_dict_pre_hook(self._take_own)
        module.register_load_state_dict_post_hook(self._loaded)

    def _make_whole(self, _module: nn.Module, found: dict[str, Any], prefix: str, _metadata: Any) -> None:
        for name, weight in self._own.items():
            if isinstance(found.get(prefix + name), DTensor):
                found[prefix + name] = self._weights.whole(weight)

    def _take_own(self, _module: nn.Module, given: dict[str, Any], prefix: str, *_: Any) -> None:
        for name, weight in self._own.items():
            value = given.get(prefix + name)
            # Other sizes are left to torch, which names them.
            if isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == weight.shape:
                given[prefix + name] = self._weights.sharded(weight, value.to(weight.parameter.dtype))

    def _loaded(self, module: nn.Module, _keys: Any) -> None:
        for name, weight in self._own.items():
            loaded = getattr(module, name)
            if loaded is not weight.parameter:  # with assign=True
                with_own = weight.parameter.detach().copy_(loaded.detach())
                assert with_own is not None
                module.register_parameter(name, weight.parameter)
        self._weights.change_weights()
