"""Modules of torch, one for each operation, against themselves on float; and the bound of a single layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.deploy.comparing import spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.operations import Convolution
from stoker.deploy.lowering.grids import RANGE_RULES, Widths
from stoker.deploy.lowering.lowering import LoweringOptions, lower
from tests.deploy.networks import Inputs, modules

pytestmark = pytest.mark.integration
MODULES = modules()
FEW = ("residual", "positions", "depthwise", "bag")
"""What `make test` imports; between them they have most operations."""


def imported(module: nn.Module, make: Callable[[int], Inputs], rule: str = "minmax") -> tuple[IntegerGraph, Inputs]:
    torch.manual_seed(1)
    samples = Samples(make(256), None)
    model = import_module(module, samples)
    options = LoweringOptions(rule=rule, corrected=rule != "minmax")  # type: ignore[arg-type]
    return lower(model.graph, model.seen, options).graph, samples.part("calibrate").inputs


def arrays(graph: IntegerGraph, inputs: Inputs) -> dict[str, np.ndarray]:
    return {port.name: each.numpy() for port, each in zip(graph.inputs, inputs, strict=True)}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FEW else pytest.mark.exhaustive) for name in MODULES],
)
def test_an_operation_is_what_it_is_on_float(name: str, tmp_path: Path) -> None:
    module, make = MODULES[name]
    graph, inputs = imported(module, make)
    given_arrays = arrays(graph, inputs)
    found = NumpyEngine(graph)(given_arrays)["output"]
    with torch.no_grad():
        real = module(*inputs).numpy()
    assert found.shape == real.shape
    # Two steps of 8 bits over a range of about six standard deviations are 5 %; attention has ten of them in a row.
    assert spread_error(found, real) < (0.2 if name in ("attention", "positions", "causal") else 0.05)
    for engine in (CompiledEngine(graph, folder=tmp_path), OnnxEngine(graph)):
        assert np.array_equal(engine(given_arrays)["output"], found)


@given(seed=st.integers(0, 2**16), weights=st.integers(2, 8), bits=st.integers(4, 8))
@settings(max_examples=6)
def test_a_layer_is_within_the_bound_of_its_rounding(seed: int, weights: int, bits: int) -> None:
    """|error| <= half a step of the output, of each input times its weight, and of each weight times its input."""
    torch.manual_seed(seed)
    layer = nn.Linear(10, 6)
    samples = Samples((torch.randn(64, 10),), None)
    model = import_module(layer, samples)
    options = LoweringOptions(widths=Widths(weights=weights, activations=bits), corrected=False)
    graph = lower(model.graph, model.seen, options).graph
    (x,) = samples.part("calibrate").inputs
    found = NumpyEngine(graph)({graph.inputs[0].name: x.numpy()})["output"]
    with torch.no_grad():
        real = layer(x).numpy()
    source, out = graph.value(graph.inputs[0]), graph.value(graph.outputs[0])
    operation = graph.operations[0]
    whole = graph.constants[operation.weight].astype(np.float64)  # type: ignore[union-attr]
    by = operation.requantiser  # type: ignore[union-attr]
    scales = graph.constants[by.multiplier] * 2.0**-by.shift * out.scale / source.scale
    rounded = whole * scales[:, None]
    weight = layer.weight.detach().numpy().astype(np.float64)
    bound = (
        0.5 * out.scale
        + np.abs(x.numpy()) @ np.abs(rounded - weight).T
        + 0.5 * source.scale * np.abs(rounded).sum(axis=1)
        + scales * source.scale
    )
    assert (np.abs(found - real) <= bound * 1.001 + 1e-5).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", RANGE_RULES)
def test_every_rule_gives_a_sound_graph(rule: str) -> None:
    module, make = MODULES["depthwise"]
    graph, inputs = imported(module, make, rule)
    with torch.no_grad():
        assert spread_error(NumpyEngine(graph)(arrays(graph, inputs))["output"], module(*inputs).numpy()) < 0.1


def test_the_batch_may_have_any_size() -> None:
    module, make = MODULES["residual"]
    graph, inputs = imported(module, make)
    whole = NumpyEngine(graph)(arrays(graph, inputs))["output"]
    for count in (1, 3):
        part = NumpyEngine(graph)(arrays(graph, tuple(each[:count] for each in inputs)))["output"]
        assert np.array_equal(part, whole[:count])


def test_a_rectifier_and_a_batch_norm_cost_no_operation() -> None:
    module, make = MODULES["depthwise"]
    graph, _ = imported(module, make)
    assert [type(each).__name__ for each in graph.operations] == ["Convolution", "Convolution"]
    assert graph.operations[0].requantiser.low == graph.values[graph.operations[0].output].zero_point  # type: ignore[union-attr]


def test_a_last_batch_may_be_smaller_where_the_batch_is_second() -> None:
    module, make = MODULES["attention"]
    torch.manual_seed(1)
    moments = import_module(module, Samples(make(150), None)).seen["transpose"].patches
    assert [each.mean.shape for each in moments.values()] == [(1, 16)]


def test_shifts_are_absorbed_into_the_scales_of_weights() -> None:
    module, make = MODULES["residual"]
    torch.manual_seed(1)
    samples = Samples(make(256), None)
    model = import_module(module, samples)
    graph = lower(model.graph, model.seen, LoweringOptions(shifts=True)).graph
    layers = [each for each in graph.operations if isinstance(each, Convolution)]
    assert [each.requantiser.multiplier for each in layers] == [None] * len(layers)
    inputs = samples.part("calibrate").inputs
    with torch.no_grad():
        assert spread_error(NumpyEngine(graph)(arrays(graph, inputs))["output"], module(*inputs).numpy()) < 0.06
