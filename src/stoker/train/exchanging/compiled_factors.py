# pyright: reportUnknownMemberType=false, reportUntypedFunctionDecorator=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportUnknownArgumentType=false
# (operators are declared by annotations that torch reads, and take a context that it does not type)
"""Factors of layers inside compiled code: operators that a compiled backward pass keeps, `fullgraph` or not.

Compiled code runs no Python of ours, but it calls operators, and cannot leave one out whose result is used. Copies of
the output and of its gradient are their price: an operator may not return its argument.
"""

import itertools
import weakref
from typing import Protocol

import torch


class FactorSink(Protocol):
    """What keeps a layer's factors."""

    def note(self, rows: torch.Tensor, arrived: torch.Tensor) -> None:
        """Takes a layer's input and the gradient of its output."""
        ...


_sinks: weakref.WeakValueDictionary[int, FactorSink] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def number_of(sink: FactorSink) -> int:
    """A number by which compiled code knows a layer for as long as it lives."""
    number = next(_numbers)
    _sinks[number] = sink
    return number


@torch.library.custom_op("stoker::note_factors", mutates_args=())
def note_factors(arrived: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    """The gradient of an output, noted with the layer's input."""
    sink = _sinks.get(number)
    if sink is not None:
        sink.note(rows, arrived)
    return arrived.clone()


@note_factors.register_fake
def _(arrived: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(arrived)


@torch.library.custom_op("stoker::pass_factors", mutates_args=())
def pass_factors(output: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    """The output of a layer, whose gradient will be noted."""
    return output.clone()


@pass_factors.register_fake
def _(output: torch.Tensor, rows: torch.Tensor, number: int) -> torch.Tensor:
    return torch.empty_like(output)


def _keep(ctx, inputs, output) -> None:
    _, rows, number = inputs
    ctx.save_for_backward(rows)
    ctx.number = number


def _backward(ctx, arrived):
    (rows,) = ctx.saved_tensors
    return note_factors(arrived, rows, ctx.number), None, None


pass_factors.register_autograd(_backward, setup_context=_keep)
