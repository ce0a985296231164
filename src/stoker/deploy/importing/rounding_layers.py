# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Layers that round as the integer model will: weights by parametrizations, what they read by hooks.

While a module is imported its weights are the rounded ones, and nothing else is rounded.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

_WEIGHT_CUTS = torch.linspace(1.0, 0.4, 25)
_CUTS = torch.linspace(1.0, 0.3, 36)
"""Those of the integer model, so that training sees the weights that will run."""
_SAMPLE = 1 << 12
"""Numbers of a batch that its range is chosen by."""
_KEPT = 0.95
"""Share of a range that stays from batch to batch."""
_INPUT = "rounded_input"
_OWN = "parametrizations.weight.original"


class RoundedWeight(nn.Module):
    """A weight rounded by output channel to the scale of least squared error, with the gradient of the weight itself.

    The gradient passes rounding and clipping alike (Bengio et al., "Estimating or Propagating Gradients Through
    Stochastic Neurons for Conditional Computation", 2013): a weight beyond the range still moves, and the range with
    it, because it is chosen again in every pass.
    """

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.most = float((1 << (bits - 1)) - 1)
        self.active = True

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the integer model will have it."""
        if not self.active:
            return weight
        with torch.no_grad():
            rows = weight.flatten(1)
            rounded = self._rounded(rows).view_as(weight)
        return weight + (rounded - weight).detach()

    def _rounded(self, rows: torch.Tensor) -> torch.Tensor:
        largest = rows.abs().amax(1, keepdim=True)
        largest = torch.where(largest > 0, largest, torch.ones_like(largest))
        best, least = rows, torch.full_like(largest, torch.inf)
        for cut in _WEIGHT_CUTS.tolist():
            scales = largest * (cut / self.most)
            tried = torch.clamp(torch.round(rows / scales), -self.most, self.most) * scales
            error = (tried - rows).square().sum(1, keepdim=True)
            best = torch.where(error < least, tried, best)
            least = torch.minimum(error, least)
        return best


class RoundedInput(nn.Module):
    """Rounds what a layer reads, with a gradient inside the range and none outside.

    The range follows the batches: what least squared error would choose for each, averaged.
    """

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, bits: int, low: float, high: float) -> None:
        super().__init__()
        self.steps = float((1 << bits) - 1)
        self.register_buffer("low", torch.tensor(low), persistent=False)
        self.register_buffer("high", torch.tensor(high), persistent=False)
        self.active = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The numbers as the integer model will have them."""
        if not self.active or not x.is_floating_point():
            return x
        if self.training:
            self._follow(x.detach())
        low, high = self.low.to(x), self.high.to(x)
        scale = ((high - low) / self.steps).clamp_min(torch.finfo(x.dtype).tiny)
        zero = torch.round(low / scale)
        clipped = torch.clamp(x, zero * scale, (zero + self.steps) * scale)
        rounded = torch.round(clipped / scale) * scale
        return clipped + (rounded - clipped).detach()

    @torch.no_grad()
    def _follow(self, x: torch.Tensor) -> None:
        flat = x.flatten()
        flat = flat[:: max(1, flat.numel() // _SAMPLE)]
        low, high = flat.amin().clamp_max(0.0), flat.amax().clamp_min(0.0)
        cuts = _CUTS.to(x)[:, None]
        scale = ((high - low) * cuts / self.steps).clamp_min(torch.finfo(x.dtype).tiny)
        zero = torch.round(low * cuts / scale)
        near = torch.clamp(torch.round(flat / scale), zero, zero + self.steps) * scale
        best = _CUTS.to(x)[(near - flat).square().mean(1).argmin()]
        self.low.lerp_((best * low).to(self.low), 1 - _KEPT)
        self.high.lerp_((best * high).to(self.high), 1 - _KEPT)


def round_layer(layer: nn.Module, weight_bits: int, read: RoundedInput) -> None:
    """Makes a layer round its weight and what it reads; its state keeps its names."""
    names = tuple(name for name, _ in layer.named_parameters(recurse=False))
    parametrize.register_parametrization(layer, "weight", RoundedWeight(weight_bits))
    layer.add_module(_INPUT, read)
    layer.register_forward_pre_hook(_round_input)
    layer.register_state_dict_post_hook(_PlainNames(names))
    layer.register_load_state_dict_pre_hook(_own_names)


@contextmanager
def settled(module: nn.Module) -> Generator[None]:
    """Inside, weights *are* the rounded ones that the layers were trained with, and nothing else is rounded.

    The unrounded weights are no model that anyone has trained: an integer model that is compared with them, and whose
    biases are corrected towards them, loses what training has won.
    """
    rounding = [each for each in module.modules() if isinstance(each, (RoundedWeight, RoundedInput)) and each.active]
    lists = [each for each in module.modules() if isinstance(each, parametrize.ParametrizationList)]
    own = [(each.original, each.original.data, each()) for each in lists if isinstance(each[0], RoundedWeight)]
    try:
        for parameter, _, rounded in own:
            parameter.data = rounded.detach()
        for each in rounding:
            each.active = False
        yield
    finally:
        for parameter, data, _ in own:
            parameter.data = data
        for each in rounding:
            each.active = True


def _round_input(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return layer.get_submodule(_INPUT)(inputs[0]), *inputs[1:]


class _PlainNames:
    """A hook that saves a layer's state under the names that it had, in the order that it had."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, layer: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]) -> None:
        own = f"{prefix}{_OWN}"
        state[f"{prefix}weight"] = state.pop(own)
        for name in self._names:
            state[prefix + name] = state.pop(prefix + name)


def _own_names(
    layer: nn.Module, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str],
    unexpected: list[str], errors: list[str],
) -> None:  # fmt: skip
    """A hook that loads a state with the names that a layer had."""
    if f"{prefix}weight" in state:
        state[f"{prefix}{_OWN}"] = state.pop(f"{prefix}weight")
