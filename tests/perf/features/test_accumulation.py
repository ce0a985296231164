"""Steps that pass back more than once: micro-batches of one batch, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.perf import characterise
from stoker.perf.catalogue import gpu
from stoker.perf.features.records import StepFeatures
from stoker.perf.planning.batches import Batches
from stoker.perf.planning.pricing import predicted
from stoker.perf.planning.space import Candidate
from stoker.perf.strategy import Strategy
from tests.perf.planning.toys import offer

ROWS = torch.arange(12, dtype=torch.float32).unsqueeze(1).expand(12, 64).contiguous()


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8))


def of_step(
    make: Callable[[nn.Module, torch.optim.Optimizer], Callable[[Tensor], Any]], rows: Tensor = ROWS
) -> StepFeatures:
    """A step of a model and its optimizer, which has its states already."""
    trained = model()
    optimizer = torch.optim.AdamW(trained.parameters())
    trained(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return characterise(make(trained, optimizer), rows)


def accumulating(times: int) -> Callable[[nn.Module, torch.optim.Optimizer], Callable[[Tensor], None]]:
    def make(trained: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
        def step(x: Tensor) -> None:
            for part in x.chunk(times):
                (trained(part).sum() / times).backward()
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimizer.step()

        return step

    return make


def twice_the_same(trained: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    """As optimizers do that look at the loss in two places, such as SAM."""

    def step(x: Tensor) -> None:
        for _ in range(2):
            trained(x).sum().backward()
        optimizer.step()

    return step


def loss_by_loss(trained: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    def step(x: Tensor) -> None:
        first, second = trained(x).sum(0)[:2]
        first.backward(retain_graph=True)
        second.backward()
        optimizer.step()

    return step


def adversarial(trained: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    other = nn.Linear(8, 64)

    def step(x: Tensor) -> None:
        trained(x).sum().backward()
        trained(other(trained(x))).sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("times", [2, 3, 4])
def test_parts_of_a_batch_are_micro_batches(times: int) -> None:
    found = of_step(accumulating(times))
    assert (found.batch_size, found.micro_batches, found.micro_batch_size) == (12, times, 12 // times)
    assert found.flops > 0
    one = found.one_micro_batch()
    assert (one.batch_size, one.micro_batches) == (12 // times, 1)
    assert one.matrix_flops() * times == pytest.approx(found.matrix_flops())
    assert one.weights == found.weights, "gradients and the optimizer's state are those of the whole step"
    saved = sum(layer.saved_bytes for layer in one.layers)
    # Two activations of 256 wide; the loss and its share beside them.
    assert saved == pytest.approx(2 * 12 / times * 256 * 4, abs=16)


@pytest.mark.parametrize("make", [twice_the_same, loss_by_loss, adversarial, accumulating(1)])
def test_other_steps_have_one_micro_batch(make: Any) -> None:
    assert of_step(make).micro_batches == 1


def test_the_planner_starts_from_the_micro_batch() -> None:
    """A program that accumulates 3 x 4 samples plans as one of 4 samples does that is told to accumulate three."""
    written, small = Batches(of_step(accumulating(3))), Batches(of_step(accumulating(1), ROWS[:4]))
    assert (written.own, written.first.batch_size) == (12, 4)
    card = offer("A100-80GB-SXM", 1)
    assert card.gpu is gpu("A100-80GB-SXM")
    for accumulation in (1, 3):
        candidate = Candidate(offer=card, gpus=1, strategy=Strategy(accumulation=accumulation), micro_batch=4)
        found, expected = (predicted()(batches.at(4), candidate).seconds for batches in (written, small))
        # Beside it: adding up gradients, which a step of one micro-batch does not do.
        assert found == pytest.approx(expected, rel=0.15)
