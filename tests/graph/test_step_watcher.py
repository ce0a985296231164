from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from stoker.graph.watching.step_watcher import MAX_WAITING, Conductor


class Follows:
    """A step that begins with its tensor and is done after some calls."""

    error: Exception | None = None
    dropped = False

    def __init__(self, tensor: torch.Tensor, calls: int = 1) -> None:
        self.tensor, self.calls = tensor, calls
        self.began = self.done = False
        self.seen: list[str] = []

    def call(self, function: Any, types: Any, args: Any, kwargs: Any, run: Any) -> Any:
        self.seen.append(function.__name__)
        if any(part is self.tensor for part in args):
            self.began = True
            self.calls -= 1
            self.done = self.calls <= 0
        return run(function, args, kwargs)


@pytest.fixture
def conductor():
    made = Conductor()
    yield made
    made.close()
    assert torch._C._len_torch_function_stack() == 0


class Owner:
    """Stands for a cutter."""


OWNERS = {name: Owner() for name in ("loader", "one", "other")}


def follow(conductor, owner, calls=1, *, learns=False):
    ended = []
    step = Follows(torch.ones(2), calls)
    conductor.begin(owner, step, ended.append, learns=learns)
    return step, ended


def test_a_step_is_over_when_the_next_batch_is_asked_for(conductor):
    step, ended = follow(conductor, OWNERS["loader"])
    assert conductor.watching
    torch.sin(step.tensor)
    assert not ended
    conductor.asked(OWNERS["loader"])
    assert ended == [False]
    assert not conductor.watching


def test_a_done_step_is_over_at_the_next_module_or_optimizer(conductor):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for use in (lambda: net(torch.ones(1, 2)), optimizer.step):
        step, ended = follow(conductor, OWNERS["loader"])
        use()
        assert not ended, "it has not begun"
        torch.sin(step.tensor)
        use()
        assert ended == [False]
        assert not conductor.watching
        use()


def test_no_safe_point_while_another_step_is_under_way(conductor):
    one, one_ended = follow(conductor, OWNERS["one"])
    net = nn.Linear(2, 2)
    torch.sin(one.tensor)
    other, other_ended = follow(conductor, OWNERS["other"], calls=2)
    torch.sin(other.tensor)
    net(torch.ones(1, 2))
    assert not other_ended
    torch.cos(other.tensor)
    net(torch.ones(1, 2))
    assert one_ended == other_ended == [False]
    assert not conductor.watching


def test_several_loaders_each_with_its_own_steps(conductor):
    one, one_ended = follow(conductor, OWNERS["one"], calls=9)
    other, other_ended = follow(conductor, OWNERS["other"], calls=9)
    torch.sin(one.tensor)
    torch.sin(other.tensor)
    assert one.seen[-2:] == other.seen == ["sin", "sin"]
    conductor.asked(OWNERS["one"])
    assert (one_ended, other_ended) == ([False], [])
    conductor.left(OWNERS["other"])
    assert other_ended == [False]


def test_recorded_steps_that_wait_for_later_requests_are_not_over(conductor):
    waiting = []
    for _ in range(3):
        conductor.asked(OWNERS["loader"])
        waiting.append(follow(conductor, OWNERS["loader"], learns=True))
    assert not any(ended for _, ended in waiting)
    torch.sin(waiting[0][0].tensor)
    conductor.asked(OWNERS["loader"])
    assert [bool(ended) for _, ended in waiting] == [True, False, False]


def test_a_step_that_should_have_begun_is_over(conductor):
    recorded, _ = follow(conductor, OWNERS["loader"], learns=True)
    torch.sin(recorded.tensor)
    conductor.asked(OWNERS["loader"])
    _, ended = follow(conductor, OWNERS["loader"])
    conductor.asked(OWNERS["loader"])
    assert ended == [False]


def test_batches_that_are_never_used_do_not_pile_up(conductor):
    ended = []
    for _ in range(3 * MAX_WAITING):
        conductor.asked(OWNERS["loader"])
        conductor.begin(OWNERS["loader"], Follows(torch.ones(1)), ended.append, learns=True)
    assert len(ended) == 2 * MAX_WAITING


def test_a_call_that_a_hook_makes_is_at_no_safe_point(conductor):
    step, ended = follow(conductor, OWNERS["loader"])
    net = nn.Linear(2, 2)
    weight = torch.ones(2, requires_grad=True)
    product = weight * step.tensor
    product.register_hook(lambda grad: (net(torch.ones(1, 2)), None)[1])
    product.sum().backward()
    assert not ended
    net(torch.ones(1, 2))
    assert ended == [False]


class Ending(Follows):
    """A step that ends while the call that begins it is under way, as where a loader's iterator is collected then."""

    def __init__(self, conductor: Conductor) -> None:
        super().__init__(torch.ones(2), calls=9)
        self.conductor = conductor

    def call(self, function: Any, types: Any, args: Any, kwargs: Any, run: Any) -> Any:
        result = super().call(function, types, args, kwargs, run)
        if self.began:
            self.conductor.left(OWNERS["one"])
        return result


def test_a_call_that_ends_one_of_several_steps_is_seen_by_the_others(conductor):
    others = [Follows(torch.ones(2)) for _ in range(2)]
    ending = Ending(conductor)
    conductor.begin(OWNERS["one"], ending, lambda _: None)
    for step, owner in zip(others, (OWNERS["other"], OWNERS["loader"]), strict=True):
        conductor.begin(owner, step, lambda _: None)
    torch.cos(ending.tensor)
    torch.sin(ending.tensor)
    assert ending.seen == ["cos"]
    assert [step.seen for step in others] == [["cos", "sin"], ["cos", "sin"]]


@pytest.mark.parametrize("then", ["module", "optimizer", "ask", "begin"])
def test_the_mode_leaves_after_a_call_that_ends_the_only_step(conductor, then):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    ending, following = Ending(conductor), Follows(torch.ones(2))
    conductor.begin(OWNERS["one"], ending, lambda _: None)
    torch.cos(ending.tensor)  # torch puts the mode back after the call
    if then == "module":
        net(torch.ones(1, 2))
    elif then == "optimizer":
        optimizer.step()
    elif then == "ask":
        conductor.asked(OWNERS["loader"])
    else:
        conductor.begin(OWNERS["loader"], following, lambda _: None)
        torch.sin(following.tensor)
        assert following.seen == ["sin"], "each call is seen once"
        conductor.left(OWNERS["loader"])
    assert not conductor.watching
    assert torch._C._len_torch_function_stack() == 0
