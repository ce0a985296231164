"""Losses of one number: their memory is that of torch's own result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from stoker.perf.features.step import trace
from stoker.perf.memory.timeline import step_peak
from stoker.train.fitting.live_bytes import LiveBytes

Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    each.__name__: each
    for each in (
        functional.mse_loss, functional.smooth_l1_loss, functional.soft_margin_loss, functional.binary_cross_entropy,
        functional.huber_loss, functional.l1_loss, functional.binary_cross_entropy_with_logits,
    )
}  # fmt: skip


def loss_bytes(loss: Loss, reduction: str, wide: Tensor, target: Tensor) -> int:
    """Bytes of a loss in the trace of a step that makes nothing but it."""

    def step(x: Tensor, y: Tensor) -> None:
        loss(x.sigmoid(), y, reduction=reduction)

    _, timeline = trace(step, (wide, target), target="cpu")
    return timeline.buffers[-1].bytes


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_memory_of_torchs_own(name: str, reduction: str) -> None:
    x, y = torch.rand(8, 50), torch.rand(8, 50)
    own = LOSSES[name](x, y, reduction=reduction).untyped_storage().nbytes()
    assert loss_bytes(LOSSES[name], reduction, x, y) == own


def test_a_target_that_is_repeated_counts_as_often() -> None:
    x, y = torch.rand(8, 50), torch.rand(50)
    own = functional.soft_margin_loss(x, y).untyped_storage().nbytes()
    assert loss_bytes(functional.soft_margin_loss, "mean", x, y) == own == 8 * 50 * 4


def test_a_loss_that_is_held_to_the_end_of_the_step_is_counted_in_its_peak() -> None:
    """Half of what the model gives out: a number alone would leave the peak that much too low."""
    model, x, y = nn.Conv2d(3, 2, 1), torch.rand(16, 3, 20, 20), torch.rand(16, 2, 20, 20)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    with LiveBytes([*model.parameters(), x, y]) as live:
        step(x, y)
    model.zero_grad()
    traced = step_peak(trace(step, (x, y), target="cpu")[1]).bytes
    assert traced == pytest.approx(live.peak, rel=0.001)
