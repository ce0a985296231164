"""Classifiers that end in a logarithm of shares, as torch's examples do: decisions and losses hold on whole numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import nn
from torch.nn import functional as F

from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.importing.quantising import quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir import operations as op

pytestmark = pytest.mark.integration


class Net(nn.Module):
    """The network of https://github.com/pytorch/examples/blob/main/mnist/main.py, as it stands there."""

    def __init__(self):
        super(Net, self).__init__()  # noqa: UP008 - as it stands there
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = self.conv1(x)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.fc1(x)
        x = F.relu(x)
        x = self.dropout2(x)
        x = self.fc2(x)
        output = F.log_softmax(x, dim=1)
        return output


def digits(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of one channel and a size, and their classes."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    if size != 8:
        images = F.interpolate(images, size=(size, size), mode="bilinear")
    return images, torch.tensor(data.target)


def trained(model: nn.Module, images: torch.Tensor, classes: torch.Tensor, rounds: int) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    model.train()
    for _ in range(rounds):
        for at in range(0, len(images), 50):
            optimizer.zero_grad()
            F.nll_loss(model(images[at : at + 50]), classes[at : at + 50]).backward()
            optimizer.step()
    return model.eval()


def check(
    model: nn.Module, samples: Samples, unseen: tuple[torch.Tensor, torch.Tensor], folder: Path, most: float
) -> None:
    """Few flips, none by the logarithm, a loss that is close, and three executions that are equal."""
    found = quantise(model, samples)
    last = found.graph.operations[-1]
    assert isinstance(last, op.Add)
    images, classes = unseen
    given = {found.graph.inputs[0].name: images.numpy()}
    whole = NumpyEngine(found.graph)(given)["output"]
    with torch.no_grad():
        real = model(images).numpy()
    assert (whole.argmax(axis=1) != real.argmax(axis=1)).mean() <= most
    scores = NumpyEngine(found.graph).all_values(given)[last.sources[0]]
    assert np.array_equal(scores.argmax(axis=1), whole.argmax(axis=1))
    losses = [float(F.nll_loss(torch.as_tensor(each), classes)) for each in (whole, real)]
    assert losses[0] == pytest.approx(losses[1], rel=0.05, abs=0.003)
    shares = np.exp(whole.astype(np.float64)).sum(axis=1)
    assert np.abs(shares - 1).max() < 0.01
    engines: list[IntegerEngine] = [CompiledEngine(found.graph, folder=folder), OnnxEngine(found.graph)]
    for engine in engines:
        assert np.array_equal(engine(given)["output"], whole)


@pytest.mark.slow("trains and quantises a network, and compiles its engine")
def test_decisions_and_losses_of_a_small_classifier_hold(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images, classes = digits(8)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(72, 10), nn.LogSoftmax(dim=1)
    )
    trained(model, images[:1200], classes[:1200], 12)
    check(model, Samples((images[:1200],), classes[:1200]), (images[1200:], classes[1200:]), tmp_path, 0.005)


@pytest.mark.exhaustive
@pytest.mark.slow("trains and quantises a network of 1.2 million weights")
@pytest.mark.timeout(600)
def test_the_example_of_mnist_is_quantised_as_it_stands(tmp_path: Path) -> None:
    torch.manual_seed(0)
    images, classes = digits(28)
    model = trained(Net(), images[:1200], classes[:1200], 4)
    # One of 300 is a third of a percent, and digits that were made larger are less certain than those of MNIST.
    check(model, Samples((images[:400],), classes[:400]), (images[1200:1500], classes[1200:1500]), tmp_path, 0.01)
