"""Imported layers are within the bound of their rounding, one after another, saturation counted.

The bound of a result, at each of its places: ``sum |w'| e + sum |w' - w| |x| + |b' - b| + half a step + cut``, with e
the bound of what is read, w' and b' the rounded weights and bias as multiplier and shift have them, and ``cut`` how far
the real result is outside of the result's grid. It holds for every sample, as no step of it is a mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.floating import operations as fl
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir import operations as op
from stoker.deploy.lowering.folding import folded
from stoker.deploy.lowering.grids import Widths
from stoker.deploy.lowering.lowering import Lowered, LoweringOptions
from stoker.deploy.lowering.rounding import RoundingRule
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration
Kind = Callable[[st.DrawFn], tuple[nn.Module, tuple[int, ...]]]


@dataclass(frozen=True)
class Bounded:
    """A value on real numbers, channels last, and how far whole numbers may be off."""

    real: np.ndarray
    error: np.ndarray


def convolved(each: op.Convolution, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """In double precision, channels last; weights are (outputs, height, width, inputs)."""
    top, bottom, left, right = each.padding
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    found = nn.functional.conv2d(
        torch.from_numpy(padded.transpose(0, 3, 1, 2).copy()), torch.from_numpy(weight.transpose(0, 3, 1, 2).copy()),
        torch.from_numpy(bias), stride=each.stride, dilation=each.dilation, groups=each.groups,
    )  # fmt: skip
    return found.numpy().transpose(0, 2, 3, 1)


def before_rounding(lowered: Lowered, each: op.Operation, floats: dict[str, fl.FloatOperation],
                    known: dict[str, Bounded]) -> Bounded:  # fmt: skip
    """An operation's result before it is rounded to its grid."""
    graph, own = lowered.graph, floats[each.output]
    out = graph.values[each.output]
    sources = [known[name] for name in op.sources_of(each)]
    values = [graph.values[name] for name in op.sources_of(each)]
    if isinstance(each, op.Add):
        assert isinstance(own, fl.FloatSum)
        factors = [by * 2.0**-each.requantiser.shift * out.scale / value.scale
                   for by, value in zip(each.multipliers, values, strict=True)]  # fmt: skip
        real = sum(by * source.real for by, source in zip(own.factors, sources, strict=True))
        error = sum(
            abs(rounded) * source.error + abs(rounded - by) * np.abs(source.real)
            for by, rounded, source in zip(own.factors, factors, sources, strict=True)
        )
        return Bounded(np.asarray(real), np.asarray(error))
    assert isinstance(each, (op.Linear, op.Convolution))
    assert isinstance(own, (fl.FloatLinear, fl.FloatConvolution))
    by, source, value = each.requantiser, sources[0], values[0]
    multiplier = 1.0 if by.multiplier is None else graph.constants[by.multiplier].astype(np.float64)
    step = np.broadcast_to(multiplier * 2.0**-by.shift * out.scale / value.scale, len(own.bias))
    whole = graph.constants[each.weight].astype(np.float64)
    shaped = step.reshape(-1, *(1,) * (whole.ndim - 1))
    rounded = whole * shaped
    weight = own.weight if isinstance(own, fl.FloatLinear) else own.weight.transpose(0, 2, 3, 1)
    sums = whole.reshape(len(whole), -1).sum(axis=1)
    bias = (graph.constants[each.bias] + value.zero_point * sums) * step * value.scale
    wrong = np.abs(bias - own.bias)
    # A bias is rounded to a step of the sums, and the multiplier to a whole number.
    assert (wrong <= step * value.scale + np.abs(own.bias) / multiplier + 1e-9).all()

    def apply(x: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
        return convolved(each, x, weights, biases) if isinstance(each, op.Convolution) else x @ weights.T + biases

    error = apply(source.error, np.abs(rounded), wrong)
    error = error + apply(np.abs(source.real), np.abs(rounded - weight), np.zeros_like(wrong))
    return Bounded(apply(source.real, weight, own.bias), error)


def off_and_bounds(module: nn.Module, x: torch.Tensor, options: LoweringOptions) -> list[tuple[np.ndarray, np.ndarray]]:
    """What each result is off on real numbers, and its bound."""
    samples = Samples((x,), None)
    model = import_module(module, samples)
    lowered = model.lowered(options)
    graph = lowered.graph
    floats = {each.name: each for each in folded(model.graph).operations}
    port = graph.inputs[0]
    own = graph.value(port)
    real = x.numpy().astype(np.float64).transpose(0, *(axis + 1 for axis in port.order)).reshape(-1, *own.shape)
    ends = [(end - own.zero_point) * own.scale for end in (own.low, own.high)]
    cut = np.abs(real - np.clip(real, *ends))
    known = {port.value: Bounded(real, np.maximum(cut, 0.5 * own.scale))}
    whole = NumpyEngine(graph).all_values({port.name: x.numpy()})
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for each in graph.operations:
        if isinstance(each, op.Reshape):  # axes of size 1
            shape, before = (-1, *graph.values[each.output].shape), known[each.source]
            known[each.output] = Bounded(before.real.reshape(shape), before.error.reshape(shape))
            continue
        assert isinstance(each, op.REQUANTISED)
        bounded, out, by = before_rounding(lowered, each, floats, known), graph.values[each.output], each.requantiser
        real = bounded.real
        if each.output in lowered.joined:
            real = np.clip(real, *lowered.joined[each.output].arguments)
        low, high = ((end - out.zero_point) * out.scale for end in (by.low, by.high))
        error = bounded.error + 0.5 * out.scale + np.abs(real - np.clip(real, low, high))
        known[each.output] = Bounded(real, error)
        off = np.abs((whole[each.output].astype(np.float64) - out.zero_point) * out.scale - real)
        found.append((off, error))
    with torch.no_grad():  # the bound is that of the module itself
        last, port = known[graph.outputs[0].value].real, graph.outputs[0]
        ordered = last.reshape(-1, *(port.shape[axis] for axis in port.order))
        last = ordered.transpose(0, *(np.argsort(port.order) + 1))
        assert np.allclose(last, module(x).numpy(), rtol=1e-4, atol=1e-4)
    return found


def convolution(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    groups = draw(st.sampled_from([1, 2, 4]))
    size = draw(st.integers(5, 8)), draw(st.integers(5, 8))
    layer = nn.Conv2d(
        4, groups * draw(st.integers(1, 3)), draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        stride=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))), padding=draw(st.tuples(*[st.integers(0, 2)] * 2)),
        dilation=draw(st.integers(1, 2)), groups=groups,
    )  # fmt: skip
    return layer, (4, *size)


def residual(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    channels, factor = draw(st.integers(1, 5)), draw(st.sampled_from([1.0, -0.5, 2.0]))
    layer = nn.Conv2d(channels, channels, 3, padding=1)
    return Of(lambda s, x: torch.add(s.c(x), x, alpha=factor), c=layer), (channels, 5, 4)


def dense_chain(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    sizes = [draw(st.integers(1, 12)) for _ in range(3)]
    between = draw(st.sampled_from([nn.ReLU(), nn.ReLU6(), nn.Identity()]))
    return nn.Sequential(nn.Linear(*sizes[:2]), between, nn.Linear(*sizes[1:])), (sizes[0],)


def convolved_chain(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    first, shape = convolution(draw)
    assert isinstance(first, nn.Conv2d)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(first.out_channels, draw(st.integers(1, 4)), 1)), shape


KINDS: tuple[Kind, ...] = (convolution, residual, dense_chain, convolved_chain)


@st.composite
def cases(draw: st.DrawFn, kind: Kind) -> tuple[nn.Module, torch.Tensor, LoweringOptions]:
    torch.manual_seed(draw(st.integers(0, 2**16)))
    module, shape = kind(draw)
    rounding: RoundingRule = draw(st.sampled_from(["nearest", "compensated"]))
    widths = Widths(weights=draw(st.integers(2, 8)), activations=draw(st.integers(4, 8)))
    rule = draw(st.sampled_from(["minmax", "squares"]))  # the second one cuts, which is counted
    options = LoweringOptions(widths=widths, rule=rule, corrected=False, rounding=rounding)  # type: ignore[arg-type]
    return module.eval(), torch.randn(32, *shape), options


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=4)
def test_layers_are_within_the_bound_of_their_rounding(kind: Kind, data: st.DataObject) -> None:
    for off, bound in off_and_bounds(*data.draw(cases(kind))):
        assert (off <= bound * (1 + 1e-9) + 1e-5).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=60)
def test_many_layers_are_within_the_bound_of_their_rounding(kind: Kind, data: st.DataObject) -> None:
    for off, bound in off_and_bounds(*data.draw(cases(kind))):
        assert (off <= bound * (1 + 1e-9) + 1e-5).all()


def test_the_bound_is_no_wider_than_it_has_to_be() -> None:
    """At 8 bits a chain of two layers is within a few per cent of its range by proof, and reaches a third of that."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(256, 10)
    off, bound = off_and_bounds(module, x, LoweringOptions(corrected=False))[-1]
    with torch.no_grad():
        spread = float(module(x).std())
    assert bound.mean() < 0.2 * spread
    assert (off / bound).max() > 0.2
