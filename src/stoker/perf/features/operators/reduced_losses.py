# pyright: reportUnknownMemberType=false
"""Losses whose result is one number in memory for all elements, where torch's shape functions say room for one.

Their result is made for all elements and then becomes one number, while its memory stays as it was (``resize_``, or a
reduction into it, in aten/src/ATen/native/Loss.cpp, on CPUs and GPUs). ``soft_margin_loss`` and
``binary_cross_entropy`` write the loss of each element into the result itself; ``mse_loss`` and ``smooth_l1_loss`` into
a temporary of that size, which is not recorded here, and sum that into the result. A program that keeps its loss to the
end of the step keeps so much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_NONE = 0
"""Number that torch gives the reduction which leaves a loss for each element."""


def _reduced_result(at: int) -> Callable[[tuple[Any, ...]], Tensor | None]:
    """What makes the result of a loss whose reduction is the argument at this place; without one it is the mean."""

    def made(args: tuple[Any, ...]) -> Tensor | None:
        if len(args) > at and args[at] == _NONE:
            return None
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(shape, dtype=torch.result_type(args[0], args[1]), device="cpu").resize_(())

    return made


RESULTS: dict[str, Callable[[tuple[Any, ...]], Tensor | None]] = {
    "mse_loss": _reduced_result(2), "smooth_l1_loss": _reduced_result(2), "soft_margin_loss": _reduced_result(2),
    "binary_cross_entropy": _reduced_result(3),
}  # fmt: skip
"""Functions for the result of an operation; they return None where it has all elements. Called under the fake mode."""
