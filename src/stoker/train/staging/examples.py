# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Arguments of a call that has been written down: tensors of its shapes, whose values do not count."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from stoker.records.fitting import CallPart, ModelCall
from stoker.train.staging.capturing import DTYPES


def example_of(call: ModelCall, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as a module is called with, in a call that has been written down.

    Args:
        call: of the module.
        device: of its tensors.

    Raises:
        ValueError: this torch has no such type of tensors.
    """
    args = tuple(_value(each, device) for each in call.args)
    return args, {name: _value(each, device) for name, each in call.kwargs.items()}


def casting(call: ModelCall, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """The precision of automatic mixed precision that a call is made in."""
    if not call.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=_dtype(call.autocast))


def _value(part: CallPart, device: torch.device) -> Any:
    match part.kind:
        case "tensor":
            return torch.zeros(part.shape, dtype=_dtype(part.dtype), device=device, requires_grad=part.needs)
        case "constant":
            return part.value
        case "dict":
            return {name: _value(each, device) for name, each in zip(part.names, part.parts, strict=True)}
        case "tuple":
            return tuple(_value(each, device) for each in part.parts)
        case "list":
            return [_value(each, device) for each in part.parts]


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"`{name}` must be a type of tensors of this torch for layers to be in stages, and is none")
    return DTYPES[name]
