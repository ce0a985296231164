"""What is seen of a model while it trains: which of its modules can be repeated."""

from __future__ import annotations

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
