"""States of optimizers in host memory: weights, states and files equal to the plain ones, fewer bytes alive."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.optimizing import UsedUp
from stoker.train.fitting.states_away import StatesAway
from tests.train.bits import same

WIDTH = 96
Make = Callable[[Any], Optimizer]
MAKERS: tuple[Make, ...] = (
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.NAdam(p, lr=0.01),
)


class Both:
    """Gradients used up, with states that are away."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.states = StatesAway(optimizer, updates=False)
        self.used = UsedUp(optimizer, self.states.around)

    def close(self) -> None:
        self.used.close()
        self.states.close()


def trained(
    make: Make, change: Callable[[Optimizer], Any] | None, *, closure: bool = False, late: bool = False
) -> tuple[nn.Module, Optimizer, int, list[Any]]:
    """A model, its optimizer, the most bytes alive in the last steps, and what the program saw of gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    optimizer = make([{"params": [*model[:3].parameters()]}, {"params": [*model[3:].parameters()], "lr": 0.02}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    changed = change(optimizer) if change and not late else None
    seen: list[Any] = []

    def evaluated() -> torch.Tensor:
        loss = model(torch.randn(8, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        return loss

    with LiveBytes() as live:
        for number in range(5):
            if number == 2:
                if change and late:
                    changed = change(optimizer)
                live.begin()
            if closure:
                seen.append(optimizer.step(evaluated).item())  # type: ignore[arg-type]
            else:
                seen.append(evaluated().item())
                optimizer.step()
            seen.append([each.grad is None for each in model.parameters()])
            scheduler.step()
        peak = live.peak
        if number == 4 and changed is not None:
            changed.shown = optimizer.state_dict()
            changed.close()
    return model, optimizer, peak, seen


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("late", [False, True])
def test_weights_and_states_are_equal_bit_for_bit(make: Make, late: bool) -> None:
    plain, changed = trained(make, None), trained(make, StatesAway, late=late)
    assert same(plain[0].state_dict(), changed[0].state_dict())
    assert same(plain[1].state_dict(), changed[1].state_dict()), "in the same order as well"
    assert plain[3] == changed[3], "gradients are there behind a step"
    states = sum(leaf.nbytes for state in plain[1].state.values() for leaf in state.values() if leaf.dim())
    assert plain[2] - changed[2] > 0.6 * states


def test_gradients_that_are_used_up_bring_states_for_one_parameter_at_a_time() -> None:
    plain, changed = trained(MAKERS[1], None), trained(MAKERS[1], Both)
    assert same(plain[0].state_dict(), changed[0].state_dict())
    assert same(plain[1].state_dict(), changed[1].state_dict())
    assert changed[2] < trained(MAKERS[1], StatesAway)[2]


def test_a_closure_is_called_once_before_the_updates() -> None:
    plain, changed = (trained(MAKERS[1], change, closure=True) for change in (None, StatesAway))
    assert plain[3] == changed[3]
    assert same(plain[0].state_dict(), changed[0].state_dict())


def test_a_checkpoint_is_the_plain_one_and_loads() -> None:
    changes: list[Any] = []

    def keep(optimizer: Optimizer) -> Any:
        changes.append(StatesAway(optimizer))
        return changes[-1]

    plain, changed = trained(MAKERS[1], None), trained(MAKERS[1], keep)
    assert same(plain[1].state_dict(), changes[0].shown)
    model, optimizer = changed[:2]
    held = StatesAway(optimizer)
    optimizer.load_state_dict(copy.deepcopy(plain[1].state_dict()))
    large = [leaf for state in optimizer.state.values() for leaf in state.values() if leaf.nbytes > 2**14]
    assert large
    assert all(held.is_away(leaf) for leaf in large), "what was loaded is away as well"
    for module in (model, plain[0]):
        module.zero_grad()
        torch.manual_seed(7)
        module(torch.randn(8, WIDTH)).square().mean().backward()
    optimizer.step()
    plain[1].step()
    held.close()
    assert not any(held.is_away(leaf) for leaf in large)
    assert same(model.state_dict(), plain[0].state_dict())
