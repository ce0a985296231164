"""Training at the widths of the integer model: plain state, the same weights, gradients, and what it wins."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.importing.preparing import prepare
from stoker.deploy.importing.quantising import import_module, quantise
from stoker.deploy.importing.rounding_layers import RoundedInput, RoundedWeight
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.grids import Widths, observed_grid
from stoker.deploy.lowering.lowering import LoweringOptions, lower
from stoker.deploy.lowering.observation import Observed
from stoker.deploy.lowering.rounding import round_weights

pytestmark = pytest.mark.integration
WIDTHS = Widths(weights=2, activations=4, activations_by_layer={"4": 8})


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 4)
    )


def samples(count: int = 512) -> Samples:
    """Which quarter of an image is brightest."""
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(count, 1, 6, 6, generator=chance)
    quarters = functional.avg_pool2d(x, 3).flatten(1)
    return Samples((x,), quarters.argmax(1).numpy())


def train(module: nn.Module, data: Samples, epochs: int, rate: float) -> None:
    assert data.labels is not None
    labels = torch.as_tensor(data.labels)
    optimizer = torch.optim.Adam(module.parameters(), rate)
    module.train()
    for _ in range(epochs):
        for at in torch.randperm(len(data)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(module(data.inputs[0][at]), labels[at]).backward()
            optimizer.step()
    module.eval()


def test_the_state_is_plain_and_goes_both_ways() -> None:
    module, plain = network(), network()
    parameters = {id(each) for each in module.parameters()}
    prepared = prepare(module, samples(), WIDTHS)
    assert list(prepared.state_dict()) == list(plain.state_dict())
    assert {id(each) for each in prepared.parameters()} == parameters
    train(prepared, samples(64), 1, 1e-3)
    plain.load_state_dict(prepared.state_dict())
    assert torch.equal(plain[0].weight, prepared.state_dict()["0.weight"])
    with torch.no_grad():
        plain[0].weight.mul_(2)
    prepared.load_state_dict(plain.state_dict())
    assert torch.equal(prepared.state_dict()["0.weight"], plain[0].weight)
    assert list(copy.deepcopy(prepared).state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_weights_are_those_of_the_integer_model(bits: int) -> None:
    torch.manual_seed(bits)
    weight = torch.randn(5, 3, 3, 3)
    grid = observed_grid(Observed(low=0, high=1, sample=np.zeros(1)), 8, "minmax")
    real = weight.double().numpy()
    made = round_weights(real, np.zeros(5), grid, bits)
    wanted = made.weight * made.scales.reshape(-1, 1, 1, 1)
    assert np.abs(RoundedWeight(bits)(weight).numpy() - wanted).max() < 1e-5


def test_gradients_pass_rounding_and_stop_outside_the_range_of_what_is_read() -> None:
    weight = torch.randn(3, 4, requires_grad=True)
    RoundedWeight(2)(weight).sum().backward()
    assert torch.equal(weight.grad, torch.ones(3, 4))  # type: ignore[arg-type]
    x = torch.tensor([-0.5, 0.2, 0.8, 3.0], requires_grad=True)
    RoundedInput(4, 0.0, 1.0).eval()(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_the_module_is_imported_with_the_weights_that_it_was_trained_with() -> None:
    prepared = prepare(network(), samples(), WIDTHS)
    before = prepared.state_dict()["0.weight"].clone()
    model = import_module(prepared, samples())
    with torch.no_grad():
        rounded = prepared[4].weight.double().numpy()
    (linear,) = (each for each in model.graph.operations if each.layer == "4")
    assert np.array_equal(linear.weight, rounded)  # type: ignore[union-attr]
    assert torch.equal(prepared.state_dict()["0.weight"], before)
    assert not torch.equal(prepared[0].weight, before)  # it rounds again afterwards
    graph = lower(model.graph, model.seen, LoweringOptions(widths=WIDTHS)).graph
    x = samples().inputs[0][:64]
    with torch.no_grad():
        simulated = prepared.eval()(x).numpy()
    found = NumpyEngine(graph)({graph.inputs[0].name: x.numpy()})["output"]
    assert np.sqrt(np.square(found - simulated).mean()) < 0.25 * simulated.std()


def test_it_can_not_be_prepared_twice() -> None:
    prepared = prepare(network(), samples(), WIDTHS)
    with pytest.raises(ValueError, match="must not be prepared"):
        prepare(prepared, samples(), WIDTHS)


@pytest.mark.slow("trains a network, and once more at its widths")
def test_training_wins_at_two_bits() -> None:
    known = samples()
    module = network()
    train(module, known, 6, 1e-2)
    torch.manual_seed(0)
    tuned = prepare(copy.deepcopy(module), known, WIDTHS)
    train(tuned, known, 12, 2e-3)
    right: list[int] = []
    for each in (module, tuned):
        record = quantise(each, known, widths=WIDTHS).record
        assert record.accept.right is not None
        right.append(record.accept.right)
    assert right[1] > right[0]
