# pyright: reportUnknownArgumentType=false
"""Facts about torch's operations from its own descriptions."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from stoker.perf.features.torch_private import schema_of

Shortcut = Literal["same", "plain", "none"]
_WRITERS = frozenset(("copy", "fill", "zero", "uniform", "normal", "bernoulli", "exponential", "random", "masked_fill"))
_FACTORIES = frozenset(("empty", "zeros", "ones", "full", "rand", "randn"))
_PLAIN = frozenset(("_unsafe_view", "mm"))


def base_name(func: Any) -> str:
    """``add`` of ``aten::add_.Tensor``; dunder and leading underscores stay."""
    name = str(schema_of(func).name).rpartition("::")[2]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def is_view(func: Any) -> bool:
    """Whether results share memory with arguments and nothing is written."""
    returns = schema_of(func).returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def is_large(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call makes a floating-point tensor, of 16 MB or more in float32, from its size alone."""
    if base_name(func) not in _FACTORIES or not args or not isinstance(args[0], (list, tuple)):
        return False
    dtype = kwargs.get("dtype")
    return (dtype is None or dtype.is_floating_point) and math.prod(args[0]) >= 1 << 22


def shortcut_of(func: Any) -> Shortcut:
    """How to compute the result's shapes without the fake mode's search, which takes several times as long.

    ``same``: the result is the written argument; ``plain``: one new tensor, by torch's shape function.
    """
    schema = schema_of(func)
    name = base_name(func)
    first = schema.arguments[0].alias_info if schema.arguments else None
    if first is not None and first.is_write and len(schema.returns) <= 1 and str(schema.name).endswith("_"):
        if name.startswith("_foreach_") or name in _WRITERS or torch.Tag.pointwise in func.tags:
            return "same"
    elif name in _PLAIN or (is_view(func) and len(schema.returns) == 1 and str(schema.returns[0].type) == "Tensor"):
        return "plain"
    return "none"
