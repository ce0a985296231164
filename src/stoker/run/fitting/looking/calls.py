"""How a program calls its replicated model for training, written down while it is traced."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from stoker.core.patching import Patches
from stoker.records.fitting import CallPart, ModelCall

_DEVICES = ("cuda", "cpu")


class CallLook:
    """Writes the first call of a ``DistributedDataParallel`` that computes gradients."""

    def __init__(self) -> None:
        self.call: ModelCall | None = None
        self.reason = "no call of it for training was seen"
        """Why there is none, as a part of a sentence."""

    def install(self, patches: Patches) -> None:
        """Looks from now on, until the patches are restored."""
        kind: Any = DistributedDataParallel
        original = kind.forward

        @functools.wraps(original)
        def forward(ddp: Any, *args: Any, **kwargs: Any) -> Any:
            if self.reason and torch.is_grad_enabled():
                self._see(args, kwargs)
            return original(ddp, *args, **kwargs)

        patches.set(kind, "forward", forward)

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.call, self.reason = written(args, kwargs), ""
        except ValueError as error:
            self.reason = str(error)


def written(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModelCall:
    """A call of a model, of which shapes and constants are known.

    Raises:
        ValueError: it has other arguments, as a part of a sentence.
    """
    cast = next((str(torch.get_autocast_dtype(each)) for each in _DEVICES if torch.is_autocast_enabled(each)), "")
    named = {name: _part_of(value) for name, value in kwargs.items()}
    return ModelCall(args=tuple(map(_part_of, args)), kwargs=named, autocast=cast)


def _part_of(value: Any) -> CallPart:
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            raise ValueError(f"it is called with a tensor of {value.layout}")
        shape = tuple(map(int, value.shape))
        return CallPart(kind="tensor", shape=shape, dtype=str(value.dtype), needs=value.requires_grad)
    if type(value) is dict:
        given = cast("dict[Any, Any]", value)
        if not all(isinstance(name, str) for name in given):
            raise ValueError("it is called with a dict whose keys are not text")
        return CallPart(kind="dict", names=tuple(given), parts=tuple(map(_part_of, given.values())))
    if type(value) is tuple:
        return CallPart(kind="tuple", parts=tuple(map(_part_of, cast("tuple[Any, ...]", value))))
    if type(value) is list:
        return CallPart(kind="list", parts=tuple(map(_part_of, cast("list[Any]", value))))
    is_plain = value is None or type(value) in (bool, int, str)
    if is_plain or (type(value) is float and math.isfinite(value)):
        return CallPart(kind="constant", value=value)
    raise ValueError(f"it is called with a value of type {type(value).__name__}")
