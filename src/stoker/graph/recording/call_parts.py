# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch's functions are untyped)
"""The tensors that go into a call and those that come out of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch

from stoker.graph.dataflow import DICT


def tensors_in(part: Any, keywords: Any = None) -> list[torch.Tensor]:
    """The tensors in the arguments of a call, from left to right."""
    found: list[torch.Tensor] = []
    _collect(part, found)
    if keywords is not None:
        _collect((keywords,), found)
    return found


def _collect(parts: Iterable[Any], found: list[torch.Tensor]) -> None:
    for part in parts:
        kind = type(part)
        if kind is torch.Tensor:
            found.append(part)
        elif kind is int or kind is float or part is None:
            continue
        elif isinstance(part, list | tuple):
            _collect(part, found)
        elif isinstance(part, dict):
            _collect(part.values(), found)
        elif kind is slice:
            _collect((part.start, part.stop, part.step), found)
        elif isinstance(part, torch.Tensor):
            found.append(part)


def results_of(result: Any) -> tuple[list[torch.Tensor], str]:
    """The tensors that a call returned, and what they came in; none where it returned something else as well."""
    if isinstance(result, torch.Tensor):
        return [result], "tensor"
    if (
        type(result) is dict
        and result
        and all(type(name) is str and isinstance(part, torch.Tensor) for name, part in result.items())
    ):
        return list(result.values()), DICT + json.dumps(list(result))
    if isinstance(result, list | tuple) and result and all(isinstance(part, torch.Tensor) for part in result):
        kind = type(result)
        if kind in (list, tuple):
            return list(result), kind.__name__
        if kind.__module__ == "torch.return_types":
            return list(result), f"{kind.__module__}.{kind.__qualname__}"
    return [], "none"


def why_unmovable(outputs: list[torch.Tensor]) -> str:
    """Why a call stays some of whose results are no plain tensors."""
    for tensor in outputs:
        if tensor.requires_grad:
            return "its result depends on parameters"
        if tensor.device.type != "cpu":
            return f"it runs on {tensor.device}"
    return f"its result is a {type(outputs[0]).__name__} of layout {outputs[0].layout}"
