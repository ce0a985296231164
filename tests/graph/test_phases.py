"""Phases of a program: other steps on batches that look the same are recorded as a further variant."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from stoker.graph.cut_control import MAX_VARIANTS
from stoker.graph.watching.step_watcher import Conductor
from tests.graph.loop import Source, check, everything
from tests.graph.test_substitution import batches, program

pytestmark = pytest.mark.timeout(30)


def train(x: torch.Tensor) -> torch.Tensor:
    return torch.log1p(torch.sin(x) + 1.5)


def evaluate(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.cos(x) - 0.5)


def test_phases_in_turn_are_each_recorded_once():
    """Epochs of 30 steps of training and 30 of evaluation over the same data."""

    def step(number, x, ids):
        return train(x) if (number // 30) % 2 == 0 else evaluate(x)

    outcome = check(program(step), batches, 180)
    assert {v.variant for v in outcome.verdicts if v.outcome == "moved"} == {0, 1}
    assert not [v for v in outcome.verdicts if v.outcome != "moved"]
    # Of each 30 steps, some to see that the phase is another, one to see which; the first time three more.
    assert outcome.prepared > 100


def test_a_few_other_steps_change_nothing():
    def step(number, x, ids):
        return evaluate(x) if number % 20 < 8 and number >= 20 else train(x)

    outcome = check(program(step), batches, 100)
    assert {v.variant for v in outcome.verdicts} == {0}
    assert outcome.moved


def test_a_call_with_another_number_from_some_step_on():
    """The same calls: one of them has changed, what does not depend on it still moves."""

    def step(number, x, ids):
        return train(x), torch.cos(x) * (0.5 if number < 20 else 0.25)

    outcome = check(program(step), batches, 60)
    last = outcome.verdicts[-1]
    assert last.outcome == "moved"
    assert last.variant == 0
    assert [node.function.rpartition(".")[2] for node in last.graph.nodes if node.state] == ["mul"]
    assert len(last.cut.moved) == 4


def test_no_more_than_eight_are_recorded():
    names = ["sin", "cos", "exp", "tanh", "square", "abs", "neg", "log1p", "sqrt", "floor", "ceil", "sign"]

    def step(number, x, ids):
        function: Any = getattr(torch, names[(number // 25) % len(names)])
        return function(x) * 2

    outcome = check(program(step), batches, 25 * len(names))
    assert max(v.variant for v in outcome.verdicts) < MAX_VARIANTS


def test_a_loader_whose_first_iteration_had_nothing_to_move():
    """A check before training reads the batches only; the steps that follow are found all the same."""
    weight = torch.ones(4, requires_grad=True)
    source = Source(batches, everything, "pickled")
    for epoch in range(3):
        for _, (x, _) in source.batches(12):
            ours = x @ weight if epoch == 0 else train(x) @ weight
            ours.sum().backward()
        source.cutter.left()
    assert [(v.variant, v.outcome) for v in source.verdicts] == [(0, "stayed"), (1, "moved")]
    assert source.prepared
    assert not source.conductor.watching


def test_threads_each_with_a_loader_of_its_own():
    """One conductor for all, as in a process; its steps are those of the thread that asks."""
    conductor, found = Conductor(), dict[int, list[torch.Tensor]]()
    sources = [Source(batches, everything, "pickled", conductor) for _ in range(3)]
    together = threading.Barrier(len(sources))

    def loop(place: int) -> None:
        together.wait()
        function = train if place else evaluate
        found[place] = [function(x).clone() for _, (x, _) in sources[place].batches(60)]
        sources[place].cutter.left()

    threads = [threading.Thread(target=loop, args=(place,)) for place in range(len(sources))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, source in enumerate(sources):
        function = train if place else evaluate
        assert all(torch.equal(got, function(batches(number)[0])) for number, got in enumerate(found[place]))
        assert source.verdicts[-1].outcome == "moved"
        assert source.prepared > 40
