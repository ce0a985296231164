"""What is seen of a model while it trains: which of its modules can be repeated."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from stoker.run.fitting.looking.model import ModelLook


def kept(model: nn.Module) -> dict[str, str]:
    """What stays as it is, with the reason."""
    look = ModelLook()
    look.install()
    try:
        model(torch.ones(2, 4)).sum().backward()
    finally:
        look.remove()
    return dict(look.found(model, []).kept_as_is)


def test_an_activation_in_place_is_no_matter_to_the_modules_around_it() -> None:
    found = kept(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), nn.Linear(4, 1)))
    assert found == {"0.1": "its forward pass changes its input"}


def test_a_module_that_begins_in_place_changes_its_own_input() -> None:
    found = kept(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 1))))
    assert found == dict.fromkeys(("1", "1.0"), "its forward pass changes its input")


class Silent(nn.Module):
    """Counts its calls and returns nothing, or raises."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.calls, self.fails = 0, fails

    def forward(self, x: torch.Tensor) -> None:
        """Counts."""
        self.calls += 1
        if self.fails:
            raise ValueError


class Around(nn.Module):
    """Calls it, whatever comes of it."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.silent, self.layer = Silent(fails=fails), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output."""
        with contextlib.suppress(ValueError):
            self.silent(x)
        return self.layer(x)


def test_a_forward_pass_that_raises_is_looked_at_no_more() -> None:
    assert set(kept(Around(fails=False))) == {"", "silent"}
    assert kept(Around(fails=True)) == {}


def test_nothing_of_it_stays_in_torch() -> None:
    kept(nn.Sequential(nn.Linear(4, 1)))
    compiled = torch.compile(nn.Linear(4, 1), backend="eager")  # it warns where hooks of all modules are left
    assert compiled(torch.ones(1, 4)).shape == (1, 1)
