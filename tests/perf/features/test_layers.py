"""Layers: what each module owns, keeps for its backward pass and sends on."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stoker.perf import characterise
from stoker.perf.features.records import Layer, StepFeatures


def by_path(found: StepFeatures) -> dict[str, Layer]:
    return {layer.module: layer for layer in found.layers}


class Tagger(nn.Module):
    """Tables, a parameter of its own, and a head that shares its weight with one table."""

    def __init__(self, tied: bool, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.kinds = nn.Embedding(50, 16, sparse=sparse)
        self.places = nn.Parameter(torch.zeros(6, 16))
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 100, bias=False)
        self.unused = nn.Linear(2, 2)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.words(x) + self.kinds(x % 50) + self.places
        return nn.functional.cross_entropy(self.head(self.body(y)).flatten(0, 1), x.flatten())


def test_layers_come_in_the_order_of_the_forward_pass_and_sum_to_the_whole() -> None:
    found = characterise(Tagger(tied=False), torch.randint(100, (4, 6)), optimizer=torch.optim.SGD)
    assert [layer.module for layer in found.layers] == [
        "words", "", "kinds", "body.0", "body.1", "body.2", "head", "unused",
    ]  # fmt: skip
    for name in ("dense_bytes", "dense_gradient_bytes", "embedding_bytes", "embedding_gradient_bytes"):
        assert sum(getattr(layer, name) for layer in found.layers) == getattr(found.weights, name)
    layers = by_path(found)
    assert layers[""].dense_gradient_bytes == 6 * 16 * 4
    assert layers["words"].embedding_bytes == 100 * 16 * 4
    assert layers["body.0"].dense_gradient_bytes == (16 * 32 + 32) * 4
    assert layers["body.0"].output_bytes == 4 * 6 * 32 * 4
    assert {o.module for o in found.operations if o.phase != "optimizer"} <= set(layers)


def test_a_shared_weight_belongs_to_its_first_use_and_is_dense() -> None:
    layers = by_path(characterise(Tagger(tied=True), torch.randint(100, (4, 6))))
    assert layers["words"].dense_gradient_bytes == 100 * 16 * 4
    assert layers["head"].dense_bytes == 0


def test_sparse_gradients_are_each_tables_own_rows() -> None:
    found = characterise(Tagger(tied=False, sparse=True), torch.randint(100, (4, 6)))
    assert by_path(found)["kinds"].embedding_gradient_bytes == 4 * 6 * 16 * 4
    assert by_path(found)["words"].embedding_gradient_bytes == 100 * 16 * 4


def test_saved_bytes_are_what_the_backward_pass_needs() -> None:
    """Linear keeps its input, ReLU its output: what Linear makes is let go when ReLU has read it."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    layers = by_path(characterise(model, torch.empty(4, 16), loss=lambda out: out.square().sum()))
    assert [layers[path].saved_bytes for path in ("0", "1", "2")] == [0, 4 * 32 * 4, 4 * 8 * 4]


def test_checkpointed_modules_keep_their_inputs_only() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in "ab")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.second, checkpoint(self.first, x, use_reentrant=False), use_reentrant=False).sum()

    found = characterise(Checkpointed(), torch.empty(4, 16))
    layers = by_path(found)
    assert [layers[path].saved_bytes for path in ("first.1", "first.2", "second.1")] == [0, 4 * 16 * 4, 0]
    again = [o for o in found.operations if o.module == "first.0" and o.phase == "backward" and o.name == "addmm"]
    assert [o.flops for o in again] == [2 * 4 * 16 * 64]


def test_features_of_a_file_without_layers_are_read() -> None:
    found = characterise(nn.Linear(4, 2), torch.ones(3, 4))
    whole = found.to_json()
    start, end = whole.index(b'"layers"'), whole.index(b'"unknown"')
    assert StepFeatures.from_json(whole[:start] + whole[end:]).layers == ()
    assert StepFeatures.from_json(whole) == found
