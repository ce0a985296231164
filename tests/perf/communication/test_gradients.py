"""What gradients are made of, as traced steps show it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stoker.perf import characterise
from stoker.perf.communication.gradients import gradient_layers, norms_of, row_gradient_bytes
from stoker.perf.communication.methods import GradientLayer
from stoker.perf.features.records import StepFeatures


class Mixed(nn.Module):
    """A table, convolutions over many positions and over one, and a head with a normalisation in it."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 16, sparse=sparse)
        self.wide = nn.Conv2d(3, 8, 3)
        self.whole = nn.Conv2d(3, 8, 32)
        self.head = nn.Sequential(
            nn.Linear(8, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 32),
        )  # fmt: skip

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        pooled = self.wide(x).mean((2, 3)) + self.whole(x).flatten(1) + self.words(ids).mean(1)[:, :8]
        return self.head(pooled)


class Tied(nn.Module):
    """Looked up and multiplied, as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.out = nn.Linear(16, 100, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids))


def found(features: StepFeatures) -> dict[str, GradientLayer]:
    return {layer.module: layer for layer in gradient_layers(features) if layer.bytes}


def test_products_tables_and_the_rest() -> None:
    features = characterise(Mixed(), (torch.randn(4, 3, 32, 32), torch.randint(1000, (4, 5))))
    layers = found(features)
    assert (layers["head.0"].width_in, layers["head.0"].width_out, layers["head.0"].rows) == (8, 64, 4)
    assert layers["head.0"].bytes - layers["head.0"].product_bytes == 4 * 64
    assert (layers["whole"].width_in, layers["whole"].width_out, layers["whole"].rows) == (3 * 32 * 32, 8, 4)
    assert (layers["words"].table_rows, layers["words"].width_out, layers["words"].lookups) == (1000, 16, 20)
    assert layers["wide"].why_not == layers["head.4"].why_not == "its gradient is no single product"
    order = [layer.module for layer in gradient_layers(features)]
    assert order[layers["head.3"].fed_by] == "head.0"
    assert layers["head.5"].fed_by == layers["head.0"].fed_by == -1  # a normalisation and other work stand between
    assert sum(layer.bytes for layer in layers.values()) == features.weights.dense_gradient_bytes + 4 * 16_000


def test_sparse_gradients_stay_the_programs_own() -> None:
    features = characterise(Mixed(sparse=True), (torch.randn(4, 3, 32, 32), torch.randint(1000, (4, 5))))
    assert "words" not in found(features)
    assert row_gradient_bytes(features) == 4 * 5 * 16 * 4


def test_a_tied_weight_is_neither_a_product_nor_a_table() -> None:
    layers = found(characterise(Tied(), (torch.randint(100, (2, 7)),)))
    assert list(layers) == ["words"]
    assert layers["words"].why_not
    assert not layers["words"].product_bytes + layers["words"].lookups


def test_a_layer_that_is_used_twice_sends_the_rows_of_both_uses() -> None:
    layer = nn.Linear(16, 16, bias=False)
    layers = found(characterise(nn.Sequential(layer, nn.ReLU(), layer), (torch.randn(3, 16),)))
    assert [each.rows for each in layers.values()] == [6]


def test_factors_under_autocast_have_16_bits() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    layers = found(characterise(model, (torch.randn(3, 16),), autocast=torch.bfloat16))
    assert {(each.factor_bytes, each.element_bytes) for each in layers.values()} == {(2, 4.0)}


def test_clipping_is_seen() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Tensor, *, clips: bool) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    assert norms_of(characterise(lambda x: step(x, clips=True), (torch.randn(2, 8),)))
    assert not norms_of(characterise(lambda x: step(x, clips=False), (torch.randn(2, 8),)))
