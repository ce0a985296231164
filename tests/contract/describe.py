"""Describes any batch as JSON: structure, types, dtypes, strides, flags and bytes; equal batches, equal descriptions.

Descriptions are for comparing two runs of one program, so they hold short values in clear (a difference can be read)
and long ones as a digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

SHOWN_ELEMENTS = 12
"""Arrays up to this many elements are shown in clear beside their digest."""


def digest(data: bytes) -> str:
    """A short hash of bytes."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


def describe(value: object) -> Any:
    """A JSON value that is equal for equal batches, with every tensor's aliasing within the batch."""
    return _Describer().value(value)


class _Describer:
    """One description; remembers objects and storages, so that identity and aliasing become part of it."""

    def __init__(self) -> None:
        self._objects: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._kept: list[object] = []

    def value(self, value: object) -> Any:
        if value is None or type(value) in (bool, str, int):
            return value
        if isinstance(value, int | float | complex | str | bytes | bytearray | np.generic):
            return {"type": _name(value), "repr": repr(value)}
        if id(value) in self._objects:
            return {"same_as": self._objects[id(value)]}
        self._objects[id(value)] = len(self._objects)
        self._kept.append(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        return self._container(value)

    def _container(self, value: object) -> Any:
        out: dict[str, Any] = {"type": _name(value)}
        if isinstance(value, Mapping):
            out["items"] = [[self.value(k), self.value(v)] for k, v in value.items()]
        elif isinstance(value, AbstractSet):
            out["set"] = sorted(repr(v) for v in value)
        elif isinstance(value, Sequence):
            out["values"] = [self.value(v) for v in value]
            if hasattr(value, "_fields"):
                out["fields"] = list(value._fields)
        elif isinstance(value, Enum | PurePath | type):
            out["repr"] = repr(value)
        elif dataclasses.is_dataclass(value):
            out["fields"] = {f.name: self.value(getattr(value, f.name)) for f in dataclasses.fields(value)}
        elif hasattr(type(value), "__slots__") and not hasattr(value, "__dict__"):
            out["slots"] = {name: self.value(getattr(value, name)) for name in type(value).__slots__}
        elif hasattr(value, "__dict__"):
            out["state"] = {k: self.value(v) for k, v in sorted(vars(value).items())}
        else:
            out["repr"] = repr(value)
        return out

    def _tensor(self, tensor: torch.Tensor) -> Any:
        out: dict[str, Any] = {"type": _name(tensor), "dtype": str(tensor.dtype)}
        out["grad"] = [tensor.requires_grad, tensor.is_leaf, tensor.is_inference()]
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and vars(tensor):
            out["state"] = {k: self.value(v) for k, v in sorted(vars(tensor).items())}
        plain = tensor.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        if tensor.is_nested:
            return out | {"nested": [self.value(part) for part in plain.unbind()]}
        out["shape"] = list(tensor.shape)
        if tensor.layout == torch.sparse_coo:
            parts = (plain._indices(), plain._values())
            return out | {"coalesced": tensor.is_coalesced(), "parts": [self.value(part) for part in parts]}
        if tensor.layout == torch.sparse_csr:
            parts = (plain.crow_indices(), plain.col_indices(), plain.values())
            return out | {"layout": "csr", "parts": [self.value(part) for part in parts]}
        out["strides"] = list(plain.stride())
        out["storage"] = self._storage(plain)
        return out | _contents(plain)

    def _storage(self, tensor: torch.Tensor) -> int | None:
        """The number of the tensor's storage among those of this batch; None for no bytes at all."""
        if tensor.numel() == 0:
            return None
        return self._storages.setdefault(tensor.untyped_storage().data_ptr(), len(self._storages))

    def _array(self, array: np.ndarray[Any, Any]) -> Any:
        flags = "".join(k for k, on in zip("CFW", _flags(array), strict=True) if on)
        out = {"type": _name(array), "dtype": str(array.dtype), "shape": list(array.shape), "flags": flags}
        if array.dtype.hasobject:
            return out | {"objects": [self.value(v) for v in array.reshape(-1).tolist()]}
        if array.size <= SHOWN_ELEMENTS:
            out["shown"] = repr(array.tolist())
        return out | {"bytes": digest(array.tobytes())}


def _flags(array: np.ndarray[Any, Any]) -> tuple[bool, bool, bool]:
    return array.flags.c_contiguous, array.flags.f_contiguous, array.flags.writeable


def _contents(tensor: torch.Tensor) -> dict[str, Any]:
    """Bytes of a dense tensor; taken through uint8, since NumPy does not know every dtype."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    raw = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    out: dict[str, Any] = {"bytes": digest(raw.numpy().tobytes())}
    if flat.numel() <= SHOWN_ELEMENTS:
        out["shown"] = repr(flat.tolist())
    return out


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
