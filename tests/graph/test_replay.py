"""What workers do with a plan: each call once, and no value longer than it is needed."""

from __future__ import annotations

import gc
import weakref

import torch

from stoker.graph.dataflow import Argument, Form
from stoker.graph.recording.recorder import ambient
from stoker.graph.replay.stage import PlannedCall, run_steps, with_drops


def step(path: str, inputs: tuple[int, ...], output: int) -> PlannedCall:
    arguments = tuple(Argument(Form.VALUE, number) for number in inputs)
    return PlannedCall(path, arguments, (), (output,), ambient())


def test_values_go_after_their_last_use():
    steps = with_drops(
        [
            step("torch.sin", (0,), 1),
            step("torch.cos", (1,), 2),
            step("torch.add", (1, 2), 3),
            step("torch.exp", (3,), 4),
            step("torch.abs", (3,), 5),  # nobody takes it
        ],
        kept=(4,),
    )
    assert [one.drops for one in steps] == [(), (), (1, 2), (), (3, 5)]
    values = {0: torch.rand(4)}
    run_steps(steps, values, ())
    assert sorted(values) == [0, 4]
    sine = torch.sin(values[0])
    assert torch.equal(values[4], torch.exp(sine + torch.cos(sine)))


def test_memory_of_a_chain_is_that_of_a_few_values():
    """Dropped values are freed at once, not at the end."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Values(dict[int, torch.Tensor]):
        def update(self, *found: object, **_: object) -> None:
            nonlocal most
            super().update(*found)  # pyright: ignore[reportArgumentType, reportCallIssue]
            alive.append(weakref.ref(self[max(self)]))
            most = max(most, sum(one() is not None for one in alive))

    length = 50
    steps = with_drops([step("torch.sin", (k,), k + 1) for k in range(length)], kept=(length,))
    gc.disable()
    try:
        run_steps(steps, Values({0: torch.rand(4)}), ())
    finally:
        gc.enable()
    assert len(alive) == length
    assert most <= 2
