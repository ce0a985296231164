"""What depends on nothing but the batch's size is a constant, if it is the same for each sample: masks, positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from stoker.core.errors import ModelImportError
from stoker.deploy.comparing import spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.importing.exporting import capture
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.lowering import LoweringOptions, lower
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration


def masked(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A mask made for the batch and expanded over rows, in the words of a library of transformers."""
    count, length = x.shape[:2]
    mask = torch.ones((count, length), device=x.device)
    mask[:, 4:] = 0
    mask = mask[:, None, None, :].expand(count, 1, length, length).to(x.dtype)
    inverted = 1.0 - mask
    inverted = inverted.masked_fill(inverted.to(torch.bool), torch.finfo(x.dtype).min)
    heads = self.l(x).view(count, length, 2, 8).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=inverted).sum(1)


def whole_mask(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    count, length = x.shape[:2]
    rows, columns = torch.arange(count)[:, None, None, None], torch.arange(length)[None, None, None, :]
    mask = ((rows >= 0) & (columns >= 0)).expand(count, 1, length, length)
    heads = self.l(x).view(count, length, 2, 8).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask).sum(1)


def positions(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    places = torch.arange(x.shape[1]).unsqueeze(0).expand(x.shape[0], -1)
    return self.l(x + self.p(places))


def counted(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return self.l(x) + torch.arange(x.shape[0])[:, None, None] * 0.1


def samples() -> Samples:
    torch.manual_seed(2)
    return Samples((torch.randn(64, 6, 16),), None)


@pytest.mark.parametrize(
    ("function", "masks"), [(masked, 1), (whole_mask, 0), (positions, 0)], ids=["masked", "whole", "positions"]
)
def test_it_is_folded(function: object, masks: int) -> None:
    torch.manual_seed(0)
    module, data = Of(function, l=nn.Linear(16, 16), p=nn.Embedding(6, 16)), samples()  # type: ignore[arg-type]
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    assert sum(getattr(each, "mask", None) is not None for each in graph.operations) == masks
    (x,) = data.inputs
    found = NumpyEngine(graph)({graph.inputs[0].name: x[:5].numpy()})["output"]
    with torch.no_grad():
        real = module(x[:5]).numpy()
    assert np.sqrt(np.square(found - real).mean()) < 0.06 * real.std()


def test_what_differs_from_sample_to_sample_is_refused() -> None:
    with pytest.raises(
        ModelImportError, match="must be the same for each sample, and depends on the size of the batch"
    ):
        import_module(Of(counted, l=nn.Linear(16, 16)), samples())


@torch.no_grad()
def turns(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions in the words of decoders: without gradients, and without autocast inside."""
    places = torch.arange(x.shape[1])[None].expand(x.shape[0], -1)
    with torch.autocast(device_type="cpu", enabled=False):
        angles = places[:, :, None].float() * torch.arange(16)[None, None].float() / 16
        return angles.cos() + 2 * x.relu()


def test_what_runs_without_gradients_is_computed_as_the_rest() -> None:
    torch.manual_seed(0)
    module, data = Of(lambda s, x: s.l(x) * turns(x), l=nn.Linear(16, 16)).eval(), samples()
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})["output"]
    with torch.no_grad():
        assert spread_error(found, module(*data.inputs).numpy()) < 0.05


class Undifferentiated(nn.Module):
    """Results that are made within contexts of gradients and precision."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(16, 16)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.l(x)
        with torch.autocast(device_type="cpu", enabled=False):
            return {"whole": x, "part": x.chunk(2, -1)[1], "positive": x.relu()}


def narrowed(self: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        x = self.l(x).relu()
        x = self.l(x.softmax(-1, dtype=torch.float32).to(x.dtype) + x)
    return {"whole": x.float(), "pair": torch.stack([x.to(torch.float32), x.float() * 2], 1)}


@pytest.mark.parametrize(
    "make", [Undifferentiated, lambda: Of(narrowed, l=nn.Linear(16, 16))], ids=["gradients", "precision"]
)
def test_results_of_a_context_are_those_of_the_module(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, data = make().eval(), samples()
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})
    with torch.no_grad():
        real = module(*data.inputs)
    assert list(found) == list(real)
    for name, wanted in real.items():
        assert spread_error(found[name], wanted.numpy()) < 0.05


def test_what_autocast_makes_a_copy_of_is_one() -> None:
    def written(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            y = self.l(x)
            x.to(y.dtype).add_(50)
        y.float().add_(50)
        return y.float() + x

    torch.manual_seed(0)
    module, (x,) = Of(written, l=nn.Linear(16, 16)).eval(), samples().inputs
    captured = capture(module, (x[:2],))
    with torch.no_grad():
        (found,) = captured.graph_module(*captured.arguments((x,)))
        assert torch.allclose(found, module(x), atol=0.05)


@pytest.mark.parametrize("axes", [1, (1,), -1, (1, 2), 2], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_means_over_any_axes(axes: int | tuple[int, ...], kept: bool) -> None:
    torch.manual_seed(0)
    module, data = Of(lambda s, x: s.l(x).mean(axes, kept), l=nn.Linear(16, 16)), samples()
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)({graph.inputs[0].name: data.inputs[0].numpy()})["output"]
    with torch.no_grad():
        real = module(*data.inputs).numpy()
    assert found.shape == real.shape
    assert np.sqrt(np.square(found - real).mean()) < 0.06 * real.std()


@pytest.mark.slow("imports transformers")
def test_a_bert_is_imported() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=12,
    )  # fmt: skip
    module = transformers.BertModel(config, add_pooling_layer=True).eval()
    data = Samples((torch.randint(0, 50, (64, 8)),), None)
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    (tokens,) = data.inputs
    found = NumpyEngine(graph)({graph.inputs[0].name: tokens[:5].numpy()})
    with torch.no_grad():
        real = module(tokens[:5])
    for name, wanted in zip(found, (real.last_hidden_state, real.pooler_output), strict=True):
        assert np.sqrt(np.square(found[name] - wanted.numpy()).mean()) < 0.15 * wanted.numpy().std()


def test_what_depends_on_the_size_is_not_written_to_a_constant() -> None:
    def moved(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        shift = torch.zeros(4)
        shift.add_(torch.ones(x.shape[0], 4).mean(0))
        return self.l(x) + shift

    with pytest.raises(ModelImportError, match="must not write what depends on the size of the batch to a constant"):
        import_module(Of(moved, l=nn.Linear(4, 4)), Samples((torch.randn(64, 4),), None))
