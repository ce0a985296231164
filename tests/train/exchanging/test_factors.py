import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.train.exchanging.checking import is_product
from stoker.train.exchanging.factors import FactoredLayer, factored_layers


def enabled(model: nn.Module) -> dict[str, FactoredLayer]:
    found = {layer.name: layer for _, layer in factored_layers(model)}
    for layer in found.values():
        layer.install()
        layer.enabled = True
    return found


class Drawn(nn.Module):
    """Linear layers in a drawn order, some used again."""

    def __init__(self, width: int, uses: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(max(uses) + 1))
        self.uses = uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for use in self.uses:
            x = torch.relu_(self.layers[use](x)) + 0.1 * x
        return x


@settings(deadline=None)
@given(
    width=st.integers(1, 6), uses=st.lists(st.integers(0, 2), min_size=1, max_size=5), batch=st.integers(1, 5),
    passes=st.integers(1, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_factors_multiply_to_the_gradient(width: int, uses: list[int], batch: int, passes: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = Drawn(width, uses)
    found = enabled(model)
    for _ in range(passes):
        model(torch.randn(batch, width)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name in found and parameter.grad is not None:
            taken = found[name].take()
            assert taken is not None
            left, right = taken
            assert left.shape[0] == batch * passes * uses.count(int(name.split(".")[1]))
            torch.testing.assert_close(left.t() @ right, parameter.grad, rtol=1e-4, atol=1e-5)


def test_losses_are_what_they_were() -> None:
    results: list[torch.Tensor] = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Drawn(5, [0, 1, 0])
        if captured:
            enabled(model)
        loss = model(torch.randn(3, 5)).sum()
        loss.backward()
        results.append(torch.cat([loss.detach()[None], *(p.grad.flatten() for p in model.parameters())]))  # type: ignore[union-attr]
    assert torch.equal(*results)


def test_a_penalty_is_no_part_of_the_factors() -> None:
    layer = nn.Linear(4, 3)
    found = enabled(layer)["weight"]
    (layer(torch.randn(2, 4)).sum() + layer.weight.square().sum()).backward()
    taken = found.take()
    assert taken is not None
    assert layer.weight.grad is not None
    assert not is_product(layer.weight.grad, *taken, torch.randn(4))


def test_tied_weights_and_parametrised_ones_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    model[1].weight = model[0].weight
    assert not list(factored_layers(model))


def test_convolutions_over_one_position_are_products() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, bias=False), nn.Conv2d(5, 7, 4))
    found = enabled(model)
    model(torch.randn(2, 3, 6, 6)).sum().backward()
    taken = found["1.weight"].take()
    assert taken is not None
    weight = model[1].weight.grad
    assert weight is not None
    torch.testing.assert_close(taken[0].t() @ taken[1], weight.reshape(7, -1))
    assert found["0.weight"].take() is None
    assert found["0.weight"].why_not == "it is multiplied at more than one position"


def test_nothing_is_kept_without_gradients_or_beyond_the_room() -> None:
    layer = nn.Linear(4, 3)
    found = enabled(layer)["weight"]
    with torch.no_grad():
        layer(torch.randn(2, 4))
    assert found.take() is None
    found.limit(3)
    for _ in range(2):
        layer(torch.randn(2, 4)).sum().backward()
    with pytest.raises(OverflowError, match="4"):
        found.take()
