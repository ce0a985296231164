"""Modules that torchao's PT2E flow quantised keep their scales, and give what torch gives, rounding apart."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.importing.quantising import quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir.operations import Convolution, Linear

pytestmark = pytest.mark.integration
pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e", reason="torchao is not installed")


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = functional.max_pool2d(torch.relu(x + self.norm(self.second(x))), 2)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 16), nn.Hardtanh(), nn.Linear(16, 4))


def quantizer(name: str) -> Any:
    """One that writes signed numbers at the output of each operation, and one of unsigned numbers at some inputs."""
    if name == "x86":
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    config = xnnpack.get_symmetric_quantization_config(is_per_channel=name == "channels")
    return xnnpack.XNNPACKQuantizer().set_global(config)


def converted(module: nn.Module, name: str, *inputs: torch.Tensor) -> nn.Module:
    """What torchao makes of a module, by its own steps."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # its quantizers call themselves deprecated, and say which layers they leave out
        batch = torch.export.Dim("batch", min=1)
        exported = torch.export.export(module.eval(), inputs, dynamic_shapes=({0: batch},)).module()
        prepared = pt2e.prepare_pt2e(exported, quantizer(name))
        prepared(*inputs)
        return pt2e.convert_pt2e(prepared)


def nodes(module: Any, kind: str) -> list[Any]:
    return [node for node in module.graph.nodes if kind in str(node.target)]


@pytest.mark.parametrize("name", ["channels", "tensors", "x86"])
@pytest.mark.parametrize(("make", "shape"), [(layers, (12,)), (Residual, (2, 8, 8))])
def test_scales_weights_and_outputs_are_those_of_the_graph(make: Any, shape: tuple[int, ...], name: str) -> None:
    torch.manual_seed(0)
    module, x = make(), torch.randn(64, *shape)
    module(x)  # batch norms see something
    given = converted(module, name, x)
    graph = quantise(given, Samples((x,), None)).graph
    grids = {(value.scale, value.zero_point, value.bits) for value in graph.values.values()}
    wanted = {(*node.args[1:3], 8) for node in nodes(given, "dequantize_per_tensor") if "quantize" in str(node.args[0])}
    on_values = {grid for grid in wanted if isinstance(grid[0], float)}
    if name != "tensors":  # else some are those of weights
        assert on_values <= grids
    whole = [
        tensor.numpy() for key, tensor in {**given.state_dict(), **dict(given.named_buffers())}.items()
        if tensor.dtype == torch.int8 and "frozen" in key
    ]  # fmt: skip
    made = [graph.constants[each.weight] for each in graph.operations if isinstance(each, (Linear, Convolution))]
    assert len(whole) == len(made) == 3
    for one, other in zip(whole, made, strict=True):
        assert np.array_equal(np.sort(one.ravel()), np.sort(other.ravel()))
    with torch.no_grad():
        real = given(x).numpy()
    found = NumpyEngine(graph)({graph.inputs[0].name: x.numpy()})["output"]
    output = graph.values[graph.outputs[0].value]
    low, high = ((end - output.zero_point) * output.scale for end in (output.low, output.high))
    steps = np.abs(found - np.clip(real, low, high)) / output.scale  # x86's has ends of some samples alone
    # A sum that lies between two steps may go to either, and each layer passes that on; the values that x86's
    # quantizer leaves on real numbers are rounded here.
    assert steps.max() <= (1.01 if make is layers and name != "x86" else 3.5)
    assert np.median(steps) < 0.5
