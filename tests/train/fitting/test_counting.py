"""Peaks of a program's first steps, counted while it runs: by its optimizer's steps, or by its backward passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stoker.core.patching import patched
from stoker.train.fitting.counting import StepCount


@pytest.mark.parametrize("passes", [1, 2])
def test_steps_of_a_program_that_updates_its_weights_itself(passes: int) -> None:
    """A step ends with the pass after as many backward passes; one inside of another, that repeats, is no other."""
    model, ended = nn.Linear(4, 1000), list[int]()
    count = StepCount(2, lambda: False, lambda: ended.append(size), passes_by_hand=passes)
    rows = torch.ones(2, 4, requires_grad=True)
    count.start()
    sizes = [100_000, 50_000, 200_000, 300_000]
    for size in sizes:
        for _ in range(passes):
            found = checkpoint(model, rows, use_reentrant=True)
            assert isinstance(found, torch.Tensor)
            found.sum().backward()
        torch.zeros(size)  # as an update allocates
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter -= parameter.grad
        model.zero_grad()
    count.stop()
    assert ended == [200_000], "the second step is over when the third begins"
    assert [each.step for each in count.peaks] == [1, 2]
    first, second = (each.bytes for each in count.peaks)
    assert first - second == 4 * (100_000 - 50_000)
    assert not [names for purpose, names in patched().items() if "first steps" in purpose], "and nothing stays replaced"


def test_steps_of_the_first_optimizer() -> None:
    model, ended = nn.Linear(4, 10), list[bool]()
    first, other = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    count = StepCount(2, lambda: False, lambda: ended.append(True))
    count.start()
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        first.step()
        other.step()
    count.stop()
    assert len(count.peaks) == 2
    assert ended == [True]
