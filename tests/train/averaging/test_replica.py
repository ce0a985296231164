"""What is averaged, and what is seen in between: several ranks in this process, in lockstep."""

from __future__ import annotations

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from benchmarks.programs.averaged_digits import DigitsCase
from benchmarks.support.averaged_ranks import EmulatedClock, lockstep, simulate, simulate_ddp
from stoker.core.errors import AveragingError
from stoker.records.events import ModelAveraged
from stoker.train.averaging.looks import MeansSeen
from stoker.train.averaging.policy import AveragingRules
from stoker.train.averaging.replica import AveragedReplica

EVERY_4 = AveragingRules(fixed_period=4, warm_up_steps=0, settling_steps=0)


class Ranks:
    """Copies of a small model that train on other data."""

    def __init__(self, ranks: int = 3, rules: AveragingRules = EVERY_4, kind: str = "sgd", seen: bool = True) -> None:
        torch.manual_seed(0)
        first = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.models = [copy.deepcopy(first) for _ in range(ranks)]
        make = {
            "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
            "adam": lambda weights: torch.optim.AdamW(weights, lr=0.01),
        }[kind]
        self.optimizers: list[torch.optim.Optimizer] = [make(model.parameters()) for model in self.models]
        self.clock = EmulatedClock(100)
        self.rounds: list[ModelAveraged] = []
        pairs = list(zip(self.models, self.optimizers, strict=True))
        self.replicas = [
            AveragedReplica(model, [optimizer], ranks=ranks, rules=rules, clock=self.clock, on_round=self.rounds.append)
            for model, optimizer in pairs
        ]
        every = list(zip(pairs, self.replicas, strict=True))
        self.seen = [MeansSeen(model, [optimizer], each) for (model, optimizer), each in every] if seen else []
        self.chance = torch.Generator().manual_seed(1)

    def step(self, *, unused: int | None = None) -> None:
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            (model(torch.randn(8, 3, generator=self.chance)) - rank).square().mean().backward()
            if rank == unused:
                model[2].weight.grad = None
            optimizer.step()
        self.clock.now_s += 1
        asked = [each.stepped() for each in self.replicas]
        lockstep([each for each in asked if each is not None], self.clock)

    def steps(self, count: int) -> Ranks:
        for _ in range(count):
            self.step()
        return self


def own(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_weights_buffers_and_state_are_equal_after_an_average(kind: str) -> None:
    ranks = Ranks(kind=kind).steps(3)
    apart = [own(model) for model in ranks.models]
    assert not same(apart[0], apart[1])
    ranks.step()
    assert same(own(ranks.models[0]), own(ranks.models[2]))
    states = [[v for s in each.state.values() for v in s.values()] for each in ranks.optimizers]
    assert same(states[0], states[1])
    assert [each.step for each in ranks.rounds] == [4, 4, 4]
    # Weights and running statistics, and one or two moments of each weight.
    weights = sum(each.numel() for each in ranks.models[0].parameters())
    assert ranks.rounds[0].bytes == 4 * (weights * (2 if kind == "sgd" else 3) + 8)


def test_an_evaluation_sees_the_last_mean_and_leaves_the_weights() -> None:
    ranks = Ranks().steps(4)
    model = ranks.models[0]
    rows = torch.randn(5, 3)
    with torch.no_grad():
        mean = copy.deepcopy(model).eval()(rows)
    ranks.steps(2)
    before, places = own(model), [each.data_ptr() for each in model.parameters()]
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(rows), mean)
    assert same(own(model), before)
    assert [each.data_ptr() for each in model.parameters()] == places
    assert not torch.equal(model(rows), mean), "with gradients it is a step of training"
    assert ranks.replicas[0].looked_at == 6
    assert ranks.replicas[1].looked_at == 0


def test_a_backward_pass_under_way_keeps_what_it_saved() -> None:
    ranks = Ranks().steps(6)
    model = ranks.models[0]
    rows = torch.randn(5, 3)
    found: list[list[torch.Tensor]] = []
    for looks in (False, True):
        model.zero_grad()
        loss = model(rows).square().sum()
        if looks:
            model.eval()
            with torch.no_grad():
                model(rows)
            model.train()
        loss.backward()
        found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
    assert same(found[0], found[1])


def test_an_evaluation_that_fails_leaves_the_weights() -> None:
    ranks = Ranks().steps(6)
    model = ranks.models[0].eval()
    before = own(model)
    with torch.no_grad(), pytest.raises(RuntimeError, match="mat1 and mat2"):
        model(torch.zeros(5, 7))
    assert same(own(model), before)


def test_a_checkpoint_is_the_last_mean_and_loads_in_plain_torch() -> None:
    ranks = Ranks(kind="adam").steps(4)
    at_mean = copy.deepcopy((ranks.models[0].state_dict(), ranks.optimizers[0].state_dict()))
    ranks.steps(2)
    file = io.BytesIO()
    torch.save((ranks.models[0].state_dict(), ranks.optimizers[0].state_dict()), file)
    model, state = torch.load(io.BytesIO(file.getvalue()))
    assert same([v for n, v in model.items() if "num" not in n], [v for n, v in at_mean[0].items() if "num" not in n])
    for number, values in state["state"].items():
        assert torch.equal(values["exp_avg"], at_mean[1]["state"][number]["exp_avg"])
    plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    plain.load_state_dict(model)
    optimizer.load_state_dict(state)
    plain(torch.randn(8, 3)).sum().backward()
    optimizer.step()


def test_a_checkpoint_right_after_an_average_is_torchs_own() -> None:
    ranks = Ranks().steps(4)
    model = ranks.models[0]
    assert model.state_dict()["0.weight"].data_ptr() == model[0].weight.data_ptr()


def test_loaded_weights_are_what_changes_count_from() -> None:
    ranks = Ranks().steps(6)
    saved = copy.deepcopy(ranks.models[0].state_dict())
    for model in ranks.models:
        model.load_state_dict(saved)
    assert all(each.contents.weights.squared_distance() == 0 for each in ranks.replicas)
    ranks.steps(2)
    assert same(own(ranks.models[0]), own(ranks.models[1]))


def test_copies_and_pickles_of_a_model_are_plain() -> None:
    ranks = Ranks().steps(6)
    model = ranks.models[0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(own(other), own(model))
        other.eval()
        with torch.no_grad():
            other(torch.randn(5, 3))
            other[0].weight.add_(1)
        assert torch.equal(other.state_dict()["0.weight"], other[0].weight)
    assert ranks.replicas[0].looked_at == 0


def test_closing_leaves_no_hook() -> None:
    ranks = Ranks().steps(6)
    for each in ranks.seen:
        each.close()
    model = ranks.models[0]
    assert torch.equal(model.state_dict()["0.weight"], model[0].weight)
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3))
    assert ranks.replicas[0].looked_at == 0


def test_state_that_some_ranks_lack_is_left_out() -> None:
    ranks = Ranks()
    for _ in range(4):
        ranks.step(unused=1)
    weights = sum(each.numel() for each in ranks.models[0].parameters())
    assert ranks.rounds[0].bytes == 4 * weights
    assert same([p.detach() for p in ranks.models[0].parameters()], [p.detach() for p in ranks.models[1].parameters()])
    ranks.steps(4)
    assert ranks.rounds[-1].bytes == 4 * (2 * weights + 8)


def test_frozen_weights_are_left_and_thawed_ones_taken() -> None:
    ranks = Ranks()
    for model in ranks.models:
        model[0].requires_grad_(False)
    ranks.steps(4)
    frozen = ranks.rounds[-1].bytes
    for model in ranks.models:
        model[0].requires_grad_(True)
    ranks.steps(4)
    assert ranks.rounds[-1].bytes == frozen + 4 * 2 * 16
    assert same(own(ranks.models[0]), own(ranks.models[1]))


def test_ranks_with_different_weights_are_refused() -> None:
    ranks = Ranks()
    ranks.models[2][0].requires_grad_(False)
    with pytest.raises(AveragingError, match="rank 2 trains others than rank 0 at step 4"):
        ranks.steps(4)


def test_weights_of_two_precisions_are_averaged() -> None:
    ranks = Ranks()
    for model in ranks.models:
        model[2].register_parameter("scale", nn.Parameter(torch.full((3,), float(id(model) % 7), dtype=torch.bfloat16)))
    ranks.steps(4)
    assert same(own(ranks.models[0]), own(ranks.models[1]))


@given(st.integers(2, 6), st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_agreement_is_that_of_its_definition(ranks: int, seed: int) -> None:
    made = Ranks(ranks, seen=False)
    chance = torch.Generator().manual_seed(seed)
    before = torch.cat([p.detach().flatten() for p in made.models[0].parameters()])
    changes = [torch.randn(len(before), generator=chance) * 0.1 for _ in range(ranks)]
    for model, change in zip(made.models, changes, strict=True):
        parts = change.split([p.numel() for p in model.parameters()])
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), parts, strict=True):
                parameter.add_(part.view(parameter.shape))
    lockstep([each.round() for each in made.replicas], made.clock)
    wanted = torch.stack(changes).mean(0).square().sum() / torch.stack([c.square().sum() for c in changes]).mean()
    assert made.rounds[0].agreement == pytest.approx(float(wanted), abs=1e-4)


def test_filtered_means_follow_their_formula() -> None:
    rules = AveragingRules(form="bmuf", fixed_period=1, warm_up_steps=0, filter_from=0.0, smoothing=0.0)
    ranks = Ranks(2, rules, seen=False)
    weights = [model[0].weight.data for model in ranks.models]
    kept, mean = 0.0, float(weights[0][0, 0])
    for turn in range(6):
        for rank, each in enumerate(weights):
            each.add_(0.1 * (rank + 1))
        ranks.replicas[0].policy.step(), ranks.replicas[1].policy.step()
        filters = ranks.replicas[0].policy.filters
        lockstep([each.round() for each in ranks.replicas], ranks.clock)
        kept = 0.5 * kept + 0.15 if filters else 0.15
        mean += kept
        assert math.isclose(float(weights[0][0, 0]), mean, abs_tol=1e-5), turn
        assert torch.equal(weights[0], weights[1])


def test_sgd_averaged_in_each_step_is_ddp_to_rounding() -> None:
    case = DigitsCase("mlp", "sorted", 0, 4, 20, 1)
    averaged, plain = simulate(case, AveragingRules(max_period=1)), simulate_ddp(case)
    assert np.abs(averaged.weights - plain.weights).max() < 1e-6
    assert len(averaged.rounds) == 20
