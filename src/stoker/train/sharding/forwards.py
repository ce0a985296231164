"""Counts the forward passes of a replicated module, which tells ranks who waits for whom."""

from __future__ import annotations

from typing import Any

import torch

from stoker.train.state.service import PartService


class ForwardCount:
    """A hook before forward passes.

    A copy of the module, or one that is saved, has a function without effect in its place, which needs no stoker.

    Args:
        service: that counts.
    """

    def __init__(self, service: PartService) -> None:
        self._service = service

    def __call__(self, module: object, _inputs: object) -> None:
        """A pass begins, and is one for training if it computes gradients."""
        if torch.is_grad_enabled():
            self._service.begin_forward()

    def __reduce__(self) -> tuple[Any, ...]:
        # `{}.get(module, inputs)`: the inputs as they are.
        return getattr, ({}, "get")
