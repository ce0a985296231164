"""A model that is called on parts of its samples: equal to rounding where they are independent, and left elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.train.fitting.chunking import cut, why_not_cut
from stoker.train.fitting.live_bytes import LiveBytes


class Net(nn.Module):
    """Takes two inputs of all samples and a table of none, and returns two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor, mask: Tensor, *, table: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = torch.relu(self.first(x * mask) @ table)
        return self.second(hidden), {"hidden": hidden.sum(1)}


class Centred(nn.Module):
    """Subtracts the mean of all samples, as no module tells."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x - x.mean(0)


def gradients(parts: int, size: int = 60) -> tuple[float, list[Tensor], int]:
    torch.manual_seed(0)
    model = Net()
    x, mask, table = torch.randn(size, 16), torch.rand(size, 16), torch.eye(64)
    with Patches("test") as patches:
        if parts > 1:
            cut(model, parts, patches)
        with LiveBytes() as live:
            out, more = model(x, mask, table=table)
            loss = out.square().mean() + more["hidden"].mean()
            loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None], live.peak


@pytest.mark.parametrize("size", [62, 61])
def test_parts_give_the_loss_and_the_gradients_of_the_whole(size: int) -> None:
    loss, whole, _ = gradients(1, size)
    found, parts, _ = gradients(4, size)
    assert found == pytest.approx(loss, rel=1e-6)
    for ours, theirs in zip(parts, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_table_with_as_many_rows_as_samples_is_not_cut() -> None:
    assert gradients(4, 64)[0] == gradients(1, 64)[0]


def test_less_is_alive() -> None:
    assert gradients(8, 4096)[2] < 0.5 * gradients(1, 4096)[2]


def test_samples_that_depend_on_each_other_are_found_and_left_together() -> None:
    model = Centred()
    x = torch.randn(32, 16)
    before = model(x)
    with Patches("test") as patches:
        cut(model, 4, patches)
        assert torch.equal(model(x), before)


def test_modules_that_tell_are_refused() -> None:
    averaging = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    drawing = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    assert "averages" in why_not_cut(averaging)
    assert "dropout" in why_not_cut(drawing)
    assert why_not_cut(averaging.eval()) == why_not_cut(drawing.eval()) == ""
    with Patches("test") as patches, pytest.raises(ValueError, match="averages"):
        cut(averaging.train(), 2, patches)


def test_random_numbers_of_a_function_are_found() -> None:
    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.0) + torch.rand(()) * 0

    model, x = Drawing(), torch.randn(8, 2, requires_grad=True)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    with Patches("test") as patches:
        cut(model, 2, patches)
        model(x)
    assert torch.equal(torch.rand(2), expected[1:]), "called once, on the whole"
