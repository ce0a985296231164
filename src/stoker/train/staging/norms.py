# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What a program asks of all gradients at once, over the stages: their norm, and whether all are finite."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.train import torch_private
from stoker.train.splitting.norms import bits_of, joined, value_of
from stoker.train.staging.links import StageLinks
from stoker.train.staging.weights import StagedWeights

_patches = Patches("norms and scales of gradients of layers in stages")
_links: weakref.WeakKeyDictionary[StagedWeights, StageLinks] = weakref.WeakKeyDictionary()


def install(weights: StagedWeights, links: StageLinks) -> None:
    """Norms and scales of the gradients of a module's weights are those over all its stages, from now on."""
    _links[weights] = links
    if _patches.names:
        return
    for owner, name in torch_private.norms():
        _patches.set(owner, name, _over_stages(getattr(owner, name)))
    _patches.set(GradScaler, torch_private.UNSCALE, _finite_over_stages(getattr(GradScaler, torch_private.UNSCALE)))


def remove(weights: StagedWeights) -> None:
    """Ends it; behind the last module, they are torch's alone."""
    _links.pop(weights, None)
    if not _links:
        _patches.restore()


def _over_stages(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> Tensor:
        every = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        order, rest = float(norm_type), every
        parts: list[float] = []
        for weights, links in list(_links.items()):
            own = {id(each.grad): each for each in weights.by_parameter if each.grad is not None}
            held = [each for each in rest if id(each) in own]
            # A stage may have none of the gradients that are clipped, and takes part as well.
            if not held and (every or not weights.is_in_step):
                continue
            counted = [each for each in held if weights.counts(own[id(each)])]
            found = float(original(counted, order, False, foreach)) if counted else _none(order)
            rest = [each for each in rest if id(each) not in own]
            gathered = links.agree(f"the norm of order {order} of gradients", weights.version, bits_of(found))
            parts += map(value_of, gathered)
        if not parts:
            return original(every, norm_type, error_if_nonfinite, foreach)
        other = float(original(rest, order, False, foreach)) if rest else parts.pop()
        like = every[0] if every else torch.zeros(())
        total = torch.tensor(joined(other, parts, order), dtype=like.dtype, device=like.device)
        if error_if_nonfinite and not bool(total.isfinite()):
            raise RuntimeError(f"The total norm of order {order} for gradients from `parameters` is non-finite")
        return total

    return norm


def _none(order: float) -> float:
    """The norm of no gradients, as a part of one of some."""
    return float("inf") if order < 0 else 0.0


def _finite_over_stages(original: Callable[..., dict[Any, Tensor]]) -> Callable[..., dict[Any, Tensor]]:
    """A scaler leaves a step out on all ranks where one has a gradient that is not finite."""

    @functools.wraps(original)
    def unscale(scaler: Any, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, *args: Any) -> Any:
        found = original(scaler, optimizer, inv_scale, found_inf, *args)
        for weights, links in list(_links.items()):
            if not weights.held_by(optimizer):
                continue
            own = max((float(each) for each in found.values()), default=0.0)
            gathered = links.agree("a look for gradients that are not finite", weights.version, bits_of(own))
            worst = max(map(value_of, gathered))
            found = found or {found_inf.device: torch.zeros_like(found_inf)}
            for each in found.values():
                each.fill_(worst)
        return found

    return unscale
