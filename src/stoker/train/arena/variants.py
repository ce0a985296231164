"""How an operator's result is written into memory that is there: its native out variant, or calls that amount to it.

Many out variants are fakes: those that torch generates compute a new tensor and copy it, which takes more memory and
time than the operator itself. They carry a tag and have no kernel, and are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

import stoker.train.arena.torch_private as private
from stoker.train.arena.torch_private import Operator

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class WritingCall:
    """A call to make; its arguments may be values, names of values, or calls."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


Writer = Callable[[Sequence[Any], Mapping[str, Any], Sequence[Tensor]], "list[WritingCall]"]
"""Calls that write an operator's results, from its arguments and the tensors that they go to."""


def writer_of(operator: object) -> Writer | None:
    """What writes an operator's results into given tensors without a new one, or None."""
    return _writer_of(operator) if private.is_operator(operator) else None


@cache
def _writer_of(operator: Operator) -> Writer | None:
    own = _OWN.get(operator)
    if own is not None:
        return own
    found = native_variant(operator)
    return None if found is None else _by_variant(found)


@cache
def native_variant(operator: Operator) -> Operator | None:
    """The out variant that computes into given tensors, or None if there is none or it only copies.

    Source: torch's tag ``generated``, and whether the variant is a kernel for the CPU.
    """
    if _is_unfit(operator):
        return None
    wanted = [_form(each) for each in private.arguments_of(operator)]
    for variant in out_variants(operator):
        arguments = private.arguments_of(variant)
        if wanted == [_form(each) for each in arguments if not each.is_out] and _is_native(variant):
            return variant
    return None


def out_variants(operator: Operator) -> list[Operator]:
    """All overloads that write as many results as the operator returns, fakes among them."""
    count = len(private.returns_of(operator))
    return [
        variant
        for variant in private.variants_of(operator)
        if sum(each.is_out for each in private.arguments_of(variant)) == count
    ]


def _is_native(variant: Operator) -> bool:
    return torch.Tag.generated not in variant.tags and private.has_kernel(variant, "CPU")


def _is_unfit(operator: Operator) -> bool:
    """Whether results depend on a random stream, or their shapes on values, or something is a view or changed."""
    unfit = {torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    values = [*private.arguments_of(operator), *private.returns_of(operator)]
    return (
        bool(unfit & set(operator.tags))
        or any(each.alias_info is not None for each in values)
        or any(str(each.type) != "Tensor" for each in private.returns_of(operator))
        or not private.returns_of(operator)
    )


def _form(argument: Any) -> tuple[str, str, bool]:
    return argument.name, str(argument.type), bool(argument.kwarg_only)


def _by_variant(variant: Operator) -> Writer:
    names = [each.name for each in private.arguments_of(variant) if each.is_out]
    function = private.direct(variant)

    def write(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
        return [WritingCall(function, tuple(args), {**kwargs, **dict(zip(names, outs, strict=True))})]

    return write


_copy = private.direct(aten.copy_.default)
_fill = private.direct(aten.fill_.Scalar)


def _copied(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """For `clone` and `_to_copy`, of which the result has its layout and type already."""
    return [WritingCall(_copy, (outs[0], args[0]))]


def _clamped(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`relu`, which is this clamp in torch too."""
    return [WritingCall(private.direct(aten.clamp_min.out), (args[0], 0), {"out": outs[0]})]


def _filled(value: Callable[[Sequence[Any]], Any]) -> Writer:
    def write(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
        return [WritingCall(_fill, (outs[0], value(args)))]

    return write


def _zero(args: Sequence[Any]) -> int:
    return 0


def _one(args: Sequence[Any]) -> int:
    return 1


def _second(args: Sequence[Any]) -> Any:
    return args[1]


def _third(args: Sequence[Any]) -> Any:
    return args[2]


def _masked(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`masked_fill` out of place: torch copies and fills as well."""
    return [
        WritingCall(_copy, (outs[0], args[0])),
        WritingCall(private.direct(aten.masked_fill_.Scalar), (outs[0], args[1], args[2])),
    ]


def _masked_by_tensor(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    return [
        WritingCall(_copy, (outs[0], args[0])),
        WritingCall(private.direct(aten.masked_fill_.Tensor), (outs[0], args[1], args[2])),
    ]


def _looked_up(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`embedding`: rows selected by the indices in one line, as torch does."""
    rows = WritingCall(private.direct(aten.reshape.default), (args[1], [-1]))
    flat = outs[0].view(-1, outs[0].shape[-1])
    return [WritingCall(private.direct(aten.index_select.out), (args[0], 0, rows), {"out": flat})]


def _slice_spread(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`slice_backward`: zeros, and the gradient in its place."""
    part = aten.slice.Tensor(outs[0], *args[2:6])
    return [WritingCall(_fill, (outs[0], 0)), WritingCall(_copy, (part, args[0]))]


def _select_spread(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`select_backward`: zeros, and the gradient in its place."""
    part = aten.select.int(outs[0], *args[2:4])
    return [WritingCall(_fill, (outs[0], 0)), WritingCall(_copy, (part, args[0]))]


def _normalised(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """Batch norm that returns new statistics: copies of the old ones, which the one with an out variant updates."""
    result, mean, deviation, running_mean, running_variance = outs
    names = ("out", "save_mean", "save_invstd")
    return [
        WritingCall(_copy, (running_mean, args[3])),
        WritingCall(_copy, (running_variance, args[4])),
        WritingCall(
            private.direct(aten._native_batch_norm_legit.out),
            (*args[:3], running_mean, running_variance, *args[5:]),
            dict(zip(names, (result, mean, deviation), strict=True)),
        ),
    ]


def _counted(args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Tensor]) -> list[WritingCall]:
    """`arange`, of which the result has its type already."""
    return [WritingCall(private.direct(aten.arange.start_out), tuple(args), {"out": outs[0]})]


_OWN: dict[Operator, Writer] = {
    aten.clone.default: _copied,
    aten._to_copy.default: _copied,
    aten.relu.default: _clamped,
    aten.full.default: _filled(_second),
    aten.full_like.default: _filled(_second),
    aten.new_full.default: _filled(_third),
    aten.zeros.default: _filled(_zero),
    aten.zeros_like.default: _filled(_zero),
    aten.new_zeros.default: _filled(_zero),
    aten.ones.default: _filled(_one),
    aten.ones_like.default: _filled(_one),
    aten.new_ones.default: _filled(_one),
    aten.masked_fill.Scalar: _masked,
    aten.masked_fill.Tensor: _masked_by_tensor,
    aten.embedding.default: _looked_up,
    aten.slice_backward.default: _slice_spread,
    aten.select_backward.default: _select_spread,
    aten._native_batch_norm_legit_functional.default: _normalised,
    # Their arguments have other names, or no kernel of one device alone computes them.
    aten.stack.default: _by_variant(aten.stack.out),
    aten.arange.start_step: _counted,
    # Variants that take a tensor where these take a number: torch makes one of it too.
    aten.add.Scalar: _by_variant(aten.add.out),
    aten.sub.Scalar: _by_variant(aten.sub.out),
    aten.mul.Scalar: _by_variant(aten.mul.out),
    aten.div.Scalar: _by_variant(aten.div.out),
}
