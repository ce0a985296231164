"""Widths by layer: a name that has none is refused, and that of a rectifier inside a layer is its result's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stoker.core.errors import ConfigError
from stoker.deploy.importing.mixed import choices
from stoker.deploy.importing.preparing import prepare
from stoker.deploy.importing.quantising import ImportedModel, import_module, quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir import operations as op
from stoker.deploy.lowering.grids import Widths
from stoker.deploy.lowering.lowering import LoweringOptions
from stoker.deploy.lowering.narrowing import Width
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration


class Head(nn.Module):
    """A net with names."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.fixture(scope="module")
def samples() -> Samples:
    torch.manual_seed(0)
    return Samples((torch.randn(64, 3, 8, 8),), None)


@pytest.fixture(scope="module")
def model(samples: Samples) -> ImportedModel:
    torch.manual_seed(0)
    return import_module(Head().eval(), samples)


@pytest.mark.parametrize(
    ("widths", "said"),
    [
        (Widths(weights_by_layer={"haed": 2}), "`haed` must be a module or a result of the model, such as head"),
        (Widths(activations_by_layer={"haed": 4}), "`stoker deploy quantise --json` lists all under `layers`"),
        (Widths(weights_by_layer={"body": 4}), "body.0"),
        (Widths(weights_by_layer={"body.2": 4}), r"`body.2` must have weights .* write `body.2=4/BITS`"),
        (Widths(weights_by_layer={"body.1": 4}), "`body.1` .* is part of `body.0`"),
        (
            Widths(weights_by_layer={"body.3": 8}, activations_by_layer={"body.3": 8}),
            "`body.3` .* only moves its numbers",
        ),
    ],
)
def test_names_without_widths_are_refused(model: ImportedModel, widths: Widths, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        model.check_names(widths)


def test_whoever_takes_widths_refuses_them(samples: Samples) -> None:
    for taking in (lambda widths: quantise(Head(), samples, widths=widths), lambda w: prepare(Head(), samples, w)):
        with pytest.raises(ConfigError, match="haed"):
            taking(Widths(weights_by_layer={"haed": 2}))


@pytest.mark.parametrize("name", ["body.2", "relu", "body.0"])
def test_the_width_of_a_rectifier_is_that_of_the_layers_result(model: ImportedModel, name: str) -> None:
    widths = Widths(weights_by_layer={name: 8}, activations_by_layer={name: 4})
    model.check_names(widths)
    options = LoweringOptions(widths=widths)
    graph = model.lowered(options).graph
    first = graph.operations[0]
    assert isinstance(first, op.Convolution)
    assert graph.values[first.output].bits == 4
    activations = {width.layer for width in choices(model, options) if width.part == "activations"}
    assert not activations & {"relu", first.output}  # given: no search changes it
    free = choices(model, LoweringOptions())
    assert Width(first.output, "activations") in free
    assert Width("relu", "activations") not in free  # one width, offered once


def table(rows: int) -> nn.Embedding:
    found = nn.Embedding(rows, 8)
    with torch.no_grad():
        found.weight[-1] *= 10  # of a row that no sample meets
    return found


def test_a_table_has_the_width_of_weights_and_holds_rows_that_no_sample_met() -> None:
    torch.manual_seed(0)
    module = Of(lambda s, i, x: s.l(torch.cat([s.e(i), x], 1)), e=table(50), l=nn.Linear(12, 4)).eval()
    samples = Samples((torch.randint(0, 49, (64,)), torch.randn(64, 4)), None)
    model = import_module(module, samples)
    real = module.e.weight.detach().numpy()  # type: ignore[union-attr]
    for widths, bits in ((Widths(), 8), (Widths(weights=4), 4), (Widths(weights_by_layer={"e": 3}), 3)):
        lowered = model.lowered(LoweringOptions(widths=widths))
        (rows,) = (each for each in lowered.graph.operations if isinstance(each, op.Embedding))
        value = lowered.graph.values[rows.output]
        assert value.bits == bits
        assert lowered.weight_bits["embedding"] == bits * 50 * 8
        found = (lowered.graph.constants[rows.table].astype(float) - value.zero_point) * value.scale
        assert abs(found - real).max() <= 0.5001 * value.scale
        (joined,) = (each for each in lowered.graph.operations if isinstance(each, op.Concat))
        value = lowered.graph.values[joined.output]
        ends = ((end - value.zero_point) * value.scale for end in (value.type_low, value.type_high))
        assert next(ends) <= real.min() + value.scale
        assert next(ends) >= real.max() - value.scale
    free = choices(model, LoweringOptions())
    assert Width("embedding", "weights") in free
    assert Width("embedding", "activations") not in free
