"""Optimizers that hold less: weights, states and files equal to the plain ones, fewer bytes alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.optimizing import OneByOne, UsedUp, optimizers_of
from tests.train.bits import same

Make = Callable[[Any], Optimizer]
MAKERS: tuple[Make, ...] = (
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.RMSprop(p, lr=0.01),
    lambda p: torch.optim.Adagrad(p, lr=0.1),
    lambda p: torch.optim.NAdam(p, lr=0.01),
)


def trained(make: Make, change: Callable[[Optimizer], Any] | None) -> tuple[nn.Module, Optimizer, int]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(6)])
    half = [*model[:3].parameters()]
    optimizer = make([{"params": half}, {"params": [*model[3:].parameters()], "lr": 0.02}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    changed = change(optimizer) if change else None
    with LiveBytes() as live:
        for _ in range(5):
            loss = model(torch.randn(8, 40)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    if changed is not None:
        changed.close()
    return model, optimizer, live.peak


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("change", [OneByOne, UsedUp])
def test_weights_and_states_are_equal_bit_for_bit(make: Make, change: Callable[[Optimizer], Any]) -> None:
    plain, changed = trained(make, None), trained(make, change)
    assert same(plain[0].state_dict(), changed[0].state_dict())
    assert same(plain[1].state_dict(), changed[1].state_dict()), "in the same order as well"


def test_gradients_that_are_used_up_are_not_alive_together() -> None:
    def make(parameters: Any) -> Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    sizes = sum(p.numel() * p.element_size() for p in trained(make, None)[0].parameters())
    assert trained(make, UsedUp)[2] < trained(make, None)[2] - 0.6 * sizes


def test_updates_one_by_one_have_fewer_temporaries() -> None:
    def make(parameters: Any) -> Optimizer:
        return torch.optim.AdamW(parameters, lr=0.1, foreach=True)

    model, optimizer, peak = trained(make, OneByOne)
    sizes = sum(p.numel() * p.element_size() for p in model.parameters())
    assert peak < trained(make, None)[2] - 0.15 * sizes
    assert all(group["foreach"] for group in optimizer.param_groups), "as the program has it, between steps"


def test_a_step_that_raises_leaves_the_groups_as_they_were() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise KeyError("planned")

    optimizer = Failing([nn.Parameter(torch.ones(2))], foreach=True)
    changed = OneByOne(optimizer)
    for _ in range(2):
        with pytest.raises(KeyError):
            optimizer.step()
    changed.close()
    assert optimizer.param_groups[0]["foreach"] is True


def test_optimizers_of_a_model() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    assert first in optimizers_of(model)
    assert second not in optimizers_of(model)
