# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Norms of the gradients of sharded weights: a plain number of torch, as programs expect of ``clip_grad_norm_``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from stoker.core.patching import Patches
from stoker.train import torch_private

_patches = Patches("norms of gradients of sharded weights")


def install() -> None:
    """Replaces torch's norm of gradients, which ``clip_grad_norm_`` calls; whole gradients have torch's own."""
    if _patches.names:
        return
    for owner, name in torch_private.norms():
        _patches.set(owner, name, _full(getattr(owner, name)))


def remove() -> None:
    """Leaves norms to torch."""
    _patches.restore()


def _full(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def norm(*args: Any, **kwargs: Any) -> Tensor:
        found = original(*args, **kwargs)
        return found.full_tensor() if isinstance(found, DTensor) else found

    return norm
