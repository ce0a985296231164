# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# (arguments of calls are whatever the program passes)
"""Arguments of recorded calls: parsed while recording, filled in when a call is repeated."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stoker.graph.dataflow import Argument, Form

_SCALARS = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, type(Ellipsis),
        torch.dtype, torch.device, torch.memory_format, torch.layout,
    }
)  # fmt: skip
_NONE = Argument(Form.SCALAR, None)


Constants = Mapping[int, torch.Tensor] | Sequence[torch.Tensor]
"""Outside tensors by number."""


class NotRecordable(Exception):
    """An argument that can't be compared from step to step; the message names it."""


def take_apart(
    argument: Any, tensor: Callable[[torch.Tensor], Argument], leaf: Callable[[Any], Argument | None] = lambda _: None
) -> Argument:
    """An argument as a tree; ``tensor`` says what a tensor in it is, ``leaf`` whether anything else is a leaf.

    Raises:
        NotRecordable: it holds something that is neither a tensor nor a plain value.
    """
    kind = type(argument)
    if kind in _SCALARS:
        return Argument(Form.SCALAR, argument)
    if kind is torch.Tensor or isinstance(argument, torch.Tensor):
        return tensor(argument)
    found = leaf(argument)
    if found is not None:
        return found
    if kind is list:
        return Argument(Form.LIST, tuple(take_apart(part, tensor, leaf) for part in argument))
    if kind is tuple or kind is torch.Size:
        return Argument(Form.TUPLE, tuple(take_apart(part, tensor, leaf) for part in argument))
    if kind is slice:
        parts = (argument.start, argument.stop, argument.step)
        return Argument(Form.SLICE, tuple(take_apart(part, tensor, leaf) for part in parts))
    if isinstance(argument, np.number | np.bool_):
        return Argument(Form.SCALAR, argument)
    raise NotRecordable(f"an argument is of type {kind.__name__}")


def fill_in(argument: Argument, values: dict[int, torch.Tensor], constants: Constants) -> Any:
    """The argument for a call, with tensors in the place of their numbers."""
    form, payload = argument.form, argument.payload
    if form is Form.VALUE:
        return values[payload]  # pyright: ignore[reportArgumentType]
    if form is Form.CONSTANT:
        return constants[payload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    if form is Form.SCALAR:
        return payload
    parts = [fill_in(part, values, constants) for part in payload]  # pyright: ignore[reportGeneralTypeIssues]
    if form is Form.LIST:
        return parts
    return tuple(parts) if form is Form.TUPLE else slice(*parts)


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes of memory from the first to the last element of a tensor."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, on which strides and rounding of results depend."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    copy[once].copy_(tensor.detach()[once])
    return copy


def same_scalar(one: Any, other: Any) -> bool:
    """Whether two values are equal by type and bits."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.generic):
        return one.tobytes() == other.tobytes()
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return struct.pack("dd", one.real, one.imag) == struct.pack("dd", other.real, other.imag)
    return bool(one == other)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors are equal in shape, type, place and every bit."""
    if one.shape != other.shape or one.dtype is not other.dtype or one.device != other.device:
        return False
    if one.is_conj() != other.is_conj() or one.is_neg() != other.is_neg():
        return False
    if one.dtype.is_floating_point or one.dtype.is_complex:
        one, other = one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg()
        size = one.element_size()
        if size not in _INTEGERS:
            one, other, size = torch.view_as_real(one), torch.view_as_real(other), size // 2
        one, other = one.view(_INTEGERS[size]), other.view(_INTEGERS[size])
    return torch.equal(one, other)


def differing(one: Argument, other: Argument, constants: Callable[[int, int], bool]) -> str | None:
    """The difference between the same argument in two steps: None for none, empty for the structure, else in words.

    ``constants(a, b)`` compares two outside tensors by their numbers in either step.
    """
    if one.form is not other.form:
        return ""
    if one.form is Form.SCALAR:
        if same_scalar(one.payload, other.payload):
            return None
        return f"an argument differs between steps ({one.payload!r}, {other.payload!r})"
    if one.form is Form.CONSTANT:
        assert isinstance(one.payload, int)
        assert isinstance(other.payload, int)
        return None if constants(one.payload, other.payload) else "a tensor from outside the step changes between steps"
    if one.form is Form.VALUE:
        return None if one.payload == other.payload else ""
    ours: Any = one.payload
    theirs: Any = other.payload
    if len(ours) != len(theirs):
        return ""
    findings = [differing(a, b, constants) for a, b in zip(ours, theirs, strict=True)]
    if "" in findings:
        return ""
    return next((finding for finding in findings if finding is not None), None)


Matcher = Callable[[Any], bool]


def matcher(argument: Argument, current: list[Any], constants: Constants) -> Matcher:
    """A function that says whether an argument of a later step is the recorded one.

    ``current`` holds the tensors of the step by number of value.
    """
    form, payload = argument.form, argument.payload
    if form is Form.VALUE:
        assert isinstance(payload, int)
        return functools.partial(_is_current, current, payload)
    if form is Form.CONSTANT:
        assert isinstance(payload, int)
        constant = constants[payload]
        return functools.partial(_is_constant, constant)
    if form is Form.SCALAR:
        return functools.partial(same_scalar, payload)
    parts: Any = payload
    inner = [matcher(part, current, constants) for part in parts]
    if form is Form.SLICE:
        return functools.partial(_is_slice, inner)
    return functools.partial(_is_sequence, list if form is Form.LIST else tuple, inner)


def _is_current(current: list[Any], number: int, got: Any) -> bool:
    return got is current[number]


def _is_constant(constant: torch.Tensor, got: Any) -> bool:
    if type(got) is not torch.Tensor or got.requires_grad or got.layout is not torch.strided:
        return False
    return got.stride() == constant.stride() and same_bits(got, constant)


def _is_sequence(kind: type, inner: list[Matcher], got: Any) -> bool:
    if not isinstance(got, kind) or len(got) != len(inner):
        return False
    return all(matches(part) for matches, part in zip(inner, got, strict=True))


def _is_slice(inner: list[Matcher], got: Any) -> bool:
    return type(got) is slice and inner[0](got.start) and inner[1](got.stop) and inner[2](got.step)
