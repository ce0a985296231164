# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Optimizers of split layers: their steps are counted, and their state dicts have whole tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stoker.train.splitting.parts import SplitPart, SplitParts
from stoker.train.state.optimizers import Occasion, is_by_element


class SplitStates:
    """The states of the optimizers that train the parts of one model.

    Args:
        parts: of the model.
    """

    def __init__(self, parts: SplitParts) -> None:
        self._parts = parts

    def adopts(self, optimizer: Optimizer, _occasion: Occasion) -> bool:
        """Whether an optimizer trains a part; raises ``TypeError`` if it is not known to work by element."""
        if not self._parts.held_by(optimizer):
            return False
        if not is_by_element(optimizer, self._parts.by_element):
            raise TypeError(
                f"`{type(optimizer).__name__}` must work by element to train split layers, and is not known to: it "
                "would see parts of weights and gradients; use one of torch.optim such as AdamW, or name its class in "
                "split(..., by_element=[...])"
            )
        self._parts.optimizers.append(optimizer)
        return True

    def settle(self, _optimizer: Optimizer) -> None:
        """Nothing: a step that raises leaves parts as they are."""

    def before_step(self, _optimizer: Optimizer) -> None:
        """Nothing: parts are trained as they are."""

    def after_step(self, _optimizer: Optimizer) -> None:
        """Counts it."""
        self._parts.change_weights()

    def loaded(self, _optimizer: Optimizer) -> None:
        """Counts it."""
        self._parts.change_weights()

    def make_whole(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict with whole tensors."""

        def whole(part: SplitPart, name: str, value: Any) -> Any:
            is_part = isinstance(value, Tensor) and value.shape == part.parameter.shape
            return self._parts.whole(part, name, value) if is_part else value

        return self._mapped(optimizer, found, whole)

    def take_own(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """A state dict with this rank's parts."""

        def own(part: SplitPart, _name: str, value: Any) -> Any:
            is_whole = isinstance(value, Tensor) and tuple(value.shape) == part.whole_shape
            return part.cut(value, self._parts.exchange.rank) if is_whole else value

        return self._mapped(optimizer, given, own)

    def _mapped(self, optimizer: Optimizer, given: dict[str, Any], change: Any) -> dict[str, Any]:
        held = self._parts.held_by(optimizer)
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        state = dict(given["state"])
        for place, part in held.items():
            if place < len(numbers) and numbers[place] in state:
                values = state[numbers[place]]
                state[numbers[place]] = {name: change(part, name, value) for name, value in values.items()}
        return {**given, "state": state}
