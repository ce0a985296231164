"""Graphs with quantise and dequantise nodes keep their scales, whole weights and zero points."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers `quantized_decomposed`
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from stoker.core.errors import ModelImportError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.importing.quantising import import_module, quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir.operations import Convolution, Linear
from stoker.deploy.lowering.lowering import LoweringOptions, lower

pytestmark = pytest.mark.integration
OPS: Any = torch.ops.quantized_decomposed
SIGNED, UNSIGNED = (-128, 127, torch.int8), (0, 255, torch.uint8)


def on(x: torch.Tensor, scale: float, zero_point: int, kind: tuple[int, int, torch.dtype]) -> torch.Tensor:
    """A pair of nodes."""
    return OPS.dequantize_per_tensor(OPS.quantize_per_tensor(x, scale, zero_point, *kind), scale, zero_point, *kind)


class Exported(nn.Module):
    """What PT2E makes of a convolution, a rectifier, a pool and a linear layer."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        chance = torch.Generator().manual_seed(seed)
        self.register_buffer("whole", torch.randint(-128, 128, (4, 2, 3, 3), generator=chance, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4, generator=chance) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("dense", torch.randint(-127, 128, (3, 36), generator=chance, dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(4, generator=chance) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = on(x, 0.031, -3, SIGNED)
        weight = OPS.dequantize_per_channel(self.whole, self.scales, self.zeros, 0, -128, 127, torch.int8)
        x = on(functional.relu(functional.conv2d(x, weight, self.bias)), 0.0173, 0, UNSIGNED)
        x = on(functional.max_pool2d(x, 2).flatten(1), 0.0173, 0, UNSIGNED)
        weight = OPS.dequantize_per_tensor(self.dense, 0.0041, 0, -127, 127, torch.int8)
        return on(functional.linear(x, weight), 0.11, 7, SIGNED)


def samples(seed: int = 0) -> Samples:
    return Samples((torch.randn(64, 2, 8, 8, generator=torch.Generator().manual_seed(seed)),), None)


def test_scales_and_whole_weights_are_those_of_the_graph() -> None:
    module = Exported()
    graph = quantise(module, samples()).graph
    first, second = (each for each in graph.operations if isinstance(each, (Convolution, Linear)))
    found = [
        (value.scale, value.zero_point, value.bits, value.signed)
        for value in (graph.value(graph.inputs[0]), graph.values[first.output], graph.values[second.output])
    ]
    assert found == [(0.031, -3, 8, True), (0.0173, 0, 8, False), (0.11, 7, 8, True)]
    assert np.array_equal(graph.constants[first.weight], module.whole.numpy().transpose(0, 2, 3, 1))
    dense = module.dense.numpy().reshape(3, 4, 3, 3).transpose(0, 2, 3, 1).reshape(3, -1)
    assert np.array_equal(graph.constants[second.weight], dense)
    assert first.requantiser.multiplier is not None
    ratios = graph.constants[first.requantiser.multiplier] * 2.0**-first.requantiser.shift
    assert ratios == pytest.approx(module.scales.double().numpy() * 0.031 / 0.0173, rel=2**-15)
    assert len(graph.operations) == 4  # a convolution, a pool, a reshape, a linear layer; no node of the scales' own


@given(seed=st.integers(0, 2**16))
@settings(max_examples=8)
def test_outputs_are_those_of_the_graph_within_a_step(seed: int) -> None:
    module, data = Exported(seed), samples(seed)
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})["output"]
    with torch.no_grad():
        real = module(*data.inputs).numpy()
    steps = np.rint(np.abs(found - real) / 0.11)
    assert steps.max() <= 1
    assert (steps == 0).mean() > 0.97


class Regridded(nn.Module):
    """A value on one grid, then on another, and read by two."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = on(self.layer(on(x, 0.05, 0, SIGNED)), 0.03, 5, SIGNED)
        return on(on(functional.relu(x), 0.02, 0, UNSIGNED) + on(x, 0.25, 0, SIGNED), 0.2, 0, SIGNED)


def test_a_value_may_have_two_grids() -> None:
    torch.manual_seed(0)
    module, data = Regridded(), Samples((torch.randn(64, 4),), None)
    graph = quantise(module, data).graph
    assert {0.05, 0.03, 0.02, 0.25, 0.2} <= {value.scale for value in graph.values.values()}
    found = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})["output"]
    with torch.no_grad():
        assert np.abs(found - module(*data.inputs).numpy()).max() <= 0.2 * 1.01


class Shared(nn.Module):
    """As torchao writes a residual: whole numbers that two read, and values that are put on their own grid again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.randint(-127, 128, (4, 4), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = OPS.quantize_per_tensor(x, 0.03, 3, *SIGNED)
        first, second = (OPS.dequantize_per_tensor(whole, 0.03, 3, *SIGNED) for _ in range(2))
        weight = OPS.dequantize_per_channel(self.whole, self.scales, self.zeros, 0, -127, 127, torch.int8)
        x = on(functional.relu(on(functional.linear(first, weight), 0.05, -1, SIGNED) + second), 0.04, -128, SIGNED)
        return on(on(x, 0.04, -128, SIGNED).flatten(1), 0.04, -128, SIGNED)


def test_whole_numbers_that_two_read_and_a_grid_that_is_stated_again() -> None:
    torch.manual_seed(0)
    module, data = Shared(), Samples((torch.randn(64, 4),), None)
    graph = quantise(module, data).graph
    found = {(value.scale, value.zero_point) for value in graph.values.values()}
    assert {(0.03, 3), (0.05, -1), (0.04, -128)} == found
    numbers = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})["output"]
    with torch.no_grad():
        assert np.abs(numbers - module(*data.inputs).numpy()).max() <= 0.05 * 1.01


class Wrong(nn.Module):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.register_buffer("whole", torch.ones(3, 4, dtype=torch.int8))
        self.register_buffer("ones", torch.ones(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "range":
            return on(x, 0.1, 0, (-100, 100, torch.int8)) * 2
        if self.form == "scale":
            whole = OPS.quantize_per_tensor(x, 0.1, 0, *SIGNED)
            return OPS.dequantize_per_tensor(whole, 0.2, 0, *SIGNED) * 2
        if self.form == "point":
            return functional.linear(x, OPS.dequantize_per_tensor(self.whole, 0.1, 1, *SIGNED))
        scales = self.ones.to(torch.float32)
        return functional.linear(x, OPS.dequantize_per_channel(self.whole, scales, None, 1, *SIGNED))


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("range", "must use all numbers of 1 to 16 bits, got -100 to 100"),
        ("scale", "must be dequantised as it was quantised"),
        ("point", "weights must have the zero point 0"),
        ("axis", "along axis 0, got 1"),
    ],
)
def test_a_form_that_the_integer_model_lacks_is_named(form: str, said: str) -> None:
    with pytest.raises(ModelImportError, match=said) as found:
        import_module(Wrong(form), Samples((torch.randn(64, 4),), None))
    assert __file__ in str(found.value)
