"""What the bars of the cut rest on: the bound of a ratio, programs that repeat their losses, and what is moved."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("torch")

import torch

from benchmarks.cut_never_slower import bound
from benchmarks.programs.recommender import Features, recommender, rows
from benchmarks.programs.small_steps import PROGRAMS
from benchmarks.support.arms import arms


def test_a_bound_lies_below_the_median_and_among_the_values():
    values = [0.9, 0.95, 0.97, 1.0, 1.0, 1.01, 1.02, 1.05]
    low = bound(values)
    assert min(values) <= low < 1.0
    assert low == bound(values)


def test_a_bound_of_equal_values_is_that_value():
    assert bound([1.25] * 15) == 1.25


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_gives_the_same_losses_again(program):
    batch = tuple(tensor[: program.batch_size] for tensor in program.rows())

    def losses() -> list[float]:
        importlib.import_module("torch._dynamo").reset()
        torch.manual_seed(3)
        step = program.start()
        return [step(batch) for _ in range(3)]

    first = losses()
    assert first == losses()
    assert len(set(first)) == 3


def test_the_features_of_a_recommender_are_indices_of_its_tables():
    counts, categories, _ = rows()
    dense, indices = Features()(counts[:500], categories[:500])
    assert dense.shape == (500, 13)
    assert dense.isfinite().all()
    assert indices.shape == (500, 55)
    assert indices.min() >= 0
    assert indices.max() < 5_000


@pytest.mark.integration
def test_the_features_of_a_recommender_move_and_the_losses_stay():
    sides = {"moved": {"cut": "always", "workers": 1}, "left": {"cut": "off", "workers": 1}}
    with arms(recommender(256, 0.0), 40, sides) as found:
        losses = {name: arm.run(40).losses for name, arm in found.items()}
        outcome = found["moved"].outcome()
    assert losses["moved"] == losses["left"]
    moved = [node.function.rpartition(".")[2] for node in outcome.verdicts[-1].nodes if node.place == "moved"]
    assert outcome.verdicts[-1].outcome == "moved"
    assert {"log1p", "bucketize", "cat"} <= set(moved)
