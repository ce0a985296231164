# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Norms of gradients where layers are split: those of the whole, so that clipping is that of DDP."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stoker.core.patching import Patches
from stoker.train import torch_private
from stoker.train.splitting.parts import all_parts

_patches = Patches("norms of gradients of split layers")
_BITS = struct.Struct("<d"), struct.Struct("<q")


def install() -> None:
    """Replaces torch's norm of gradients, which ``clip_grad_norm_`` calls; for others than parts it is torch's own."""
    if _patches.names:
        return
    for owner, name in torch_private.norms():
        _patches.set(owner, name, _whole_norm(getattr(owner, name)))


def remove() -> None:
    """Leaves norms to torch."""
    _patches.restore()


def joined(norm: float, parts: Sequence[float], order: float) -> float:
    """The norm of a whole from norms of its parts.

    Args:
        norm: of one part.
        parts: of the others.
        order: of the norm; ``inf`` for the largest element.
    """
    every = (norm, *parts)
    if any(math.isnan(each) for each in every):
        return math.nan
    largest, least = max(every), min(every)
    if math.isinf(order):
        return largest if order > 0 else least
    if not order:
        return sum(every)
    # In units of the largest, so that no power overflows.
    unit = largest if order > 0 else least
    if unit == 0 or math.isinf(unit):
        return unit
    return unit * sum((each / unit) ** order for each in every) ** (1 / order)


def _whole_norm(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
    ) -> Tensor:
        every = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        order = float(norm_type)
        others: list[float] = []
        rest = every
        for model in list(all_parts):
            held = model.of_gradients(rest)
            if not held:
                continue
            own = float(original([each for each in rest if id(each) in held], order, False, foreach))
            rest = [each for each in rest if id(each) not in held]
            gathered = model.exchange.agree(f"the norm of {len(held)} gradients of order {order}", bits_of(own))
            others += [value_of(values[0]) for values in gathered]
        if not others:
            return original(every, norm_type, error_if_nonfinite, foreach)
        unsplit = float(original(rest, order, False, foreach)) if rest else others.pop()
        found = torch.tensor(joined(unsplit, others, order), dtype=every[0].dtype, device=every[0].device)
        if error_if_nonfinite and not bool(found.isfinite()):
            raise RuntimeError(f"The total norm of order {order} for gradients from `parameters` is non-finite")
        return found

    return norm


def bits_of(value: float) -> int:
    """A number's bits, which ranks gather without rounding them."""
    return int(_BITS[1].unpack(_BITS[0].pack(value))[0])


def value_of(bits: int) -> float:
    """The number of these bits."""
    return float(_BITS[0].unpack(_BITS[1].pack(bits))[0])
