"""Substitution on small programs, each a way in which a cut could go wrong: equal to plain torch bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stoker.graph.watching.modes import _active
from tests.graph.loop import FIRST_SUBSTITUTED, STEPS, check, drawn, everything

pytestmark = pytest.mark.timeout(30)
LATE = FIRST_SUBSTITUTED + 2
"""A step that is substituted unless something in it differs from what was recorded."""


@pytest.fixture(autouse=True)
def _nothing_is_watched_after_a_failure():
    yield
    for watch in list(_active):
        watch.detach()


def batches(number: int, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return (
        torch.rand(rows, 4, generator=generator),
        torch.randint(0, 100, (rows,), generator=generator),
    )


def program(step: Callable[..., Any], *state: Any) -> Callable[[], Any]:
    """A program of a function with no state but tensors that it is given, new ones in each run."""

    def make() -> Any:
        own = [part() for part in state]
        return functools.partial(step, *own) if own else step, lambda: own

    return make


def pairwise(x: torch.Tensor) -> torch.Tensor:
    """Some calls that can move."""
    return torch.log1p(torch.sin(x) + 1.5)


# -- the ordinary ----------------------------------------------------------------------------------------------------


def test_a_trained_network_and_its_optimizer():
    def make():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
        emb = nn.Embedding(10, 4)
        optimizer = torch.optim.Adam([*net.parameters(), *emb.parameters()])

        def step(number, x, ids):
            x = (torch.log1p(x) - 0.3) / 2
            loss = F.mse_loss(net(x + emb(ids * 7 % 10)).squeeze(1), x.sum(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach(), [p.grad for p in net.parameters()]

        return step, lambda: [net.state_dict(), emb.state_dict()]

    for worker in ("pickled", "one thread", "forked"):
        assert check(make, batches, worker=worker).moved >= 4


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_fetched_ahead(ahead):
    def step(number, x, ids):
        return pairwise(x) @ torch.ones(4, 2), (ids % 7).float()

    outcome = check(program(step), batches, 24, ahead=ahead)
    assert outcome.moved >= 3


def test_gradient_accumulation_over_groups_of_batches():
    """A framework fetches a group, then makes its steps, the next group after that."""
    from tests.graph.loop import Source, frozen

    def run(source):
        torch.manual_seed(0)
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for group in range(8):
            numbers = range(group * 4, group * 4 + 4)
            fetched = [source.ask(n) if source else batches(n) for n in numbers]
            for n, (x, ids) in zip(numbers, fetched, strict=True):
                x = torch.sin(x)
                if n == 26:
                    x = x * 2
                loss = net(pairwise(x)).mean() + (ids % 7).float().mean()
                loss.backward()
                losses.append(frozen(loss.detach()))
            optimizer.step()
            optimizer.zero_grad()
        return losses, frozen(net.state_dict())

    source = Source(batches, everything, "pickled")
    assert run(source) == run(None)
    source.cutter.left()
    assert source.prepared


def test_two_batches_used_in_turn_in_one_step():
    from tests.graph.loop import Source, frozen

    def run(source):
        results = []
        for number in range(0, 40, 2):
            (x, _), (y, _) = (source.ask(n) if source else batches(n) for n in (number, number + 1))
            a, b = torch.sin(x), torch.sin(y)
            c, d = torch.exp(a), torch.exp(b)
            results.append(frozen([c + d, a * b]))
        return results

    source = Source(batches, everything, "pickled")
    assert run(source) == run(None)


def test_two_loaders_in_one_loop():
    from tests.graph.loop import Source, frozen

    def run(one, other):
        results = []
        for number in range(STEPS):
            x, _ = one.ask(number) if one else batches(number)
            y, _ = other.ask(100 + number) if other else batches(100 + number)
            results.append(frozen([pairwise(x) + pairwise(y), pairwise(y)]))
        return results

    one = Source(batches, everything, "pickled")
    other = Source(batches, everything, "pickled", one.conductor)
    assert run(one, other) == run(None, None)
    assert one.prepared
    assert other.prepared
    for source in (one, other):
        source.cutter.left()
    assert not one.conductor.watching


# -- a late difference -----------------------------------------------------------------------------------------------


def _write(x, ids):
    x.zero_()


def _write_through_a_view(x, ids):
    x[0].mul_(2)


def _write_through_data(x, ids):
    x.data.mul_(2)


def _write_through_numpy(x, ids):
    x.numpy()[:] = 3


def _write_through_dlpack(x, ids):
    torch.from_dlpack(x).fill_(3)


def _write_through_a_capsule(x, ids):
    torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).fill_(3)


def _new_data(x, ids):
    x.data = torch.ones_like(x)


def _all_of_a_list(x, ids):
    torch._foreach_mul_([x], 2.0)


def _out(x, ids):
    torch.add(x, 1, out=x)


def _in_place_by_keyword(x, ids):
    F.relu(x.sub_(0.5), inplace=True)


WRITES = [
    _write, _write_through_a_view, _write_through_data, _write_through_numpy, _write_through_dlpack,
    _write_through_a_capsule, _new_data, _all_of_a_list, _out, _in_place_by_keyword,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("place", ["before", "between", "after"])
def test_the_batch_is_written_to_in_a_late_step(write, place):
    def step(number, x, ids):
        if number >= LATE and place == "before":
            write(x, ids)
        a = torch.sin(x)
        if number >= LATE and place == "between":
            write(x, ids)
        b = torch.cos(a) + x
        c = b * 2
        if number >= LATE and place == "after":
            write(x, ids)
        return c, x, torch.exp(c)

    assert check(program(step), batches).prepared >= STEPS - 7


@pytest.mark.parametrize("write", WRITES)
def test_a_value_inside_the_cut_is_written_to_in_a_late_step(write):
    def step(number, x, ids):
        a = torch.sin(x)
        v = a[2:5]
        if number >= LATE:
            write(a, ids)
        b = torch.cos(a)
        c = v * 2
        if number >= LATE + 1:
            write(v, ids)
        return b * c.sum(), torch.exp(b)

    check(program(step), batches)


@pytest.mark.parametrize("write", WRITES)
def test_what_a_worker_made_is_written_to(write):
    def step(number, x, ids):
        a = torch.sin(x)
        b = torch.cos(a)
        write(b, ids)
        return a, b, torch.exp(b)

    check(program(step), batches)


def test_rows_that_are_seldom_left_out():
    def few(number):
        x, ids = batches(number)
        if number in (LATE, LATE + 1):
            x[3] = float("nan")
        return x, ids

    def step(number, x, ids):
        good = x[~torch.isnan(x).any(1)]
        scaled = torch.sin(good) * 2
        return scaled.sum() / scaled.shape[0], len(good), torch.zeros(scaled.shape[0])

    assert check(program(step), few).moved


def test_a_scalar_that_changes_late():
    def step(number, x, ids):
        return torch.sin(x) * (0.5 if number < LATE else 0.25), torch.clamp(x, 0.0 if number < LATE else -0.0)

    check(program(step), batches)


def test_a_call_that_comes_late():
    def step(number, x, ids):
        a = torch.sin(x)
        if number % 5 == 4 and number >= LATE:
            a = a.flip(0)
        b = torch.cos(a)
        return torch.exp(b), torch.sin(x)

    check(program(step), batches)


def test_a_branch_on_a_value():
    def step(number, x, ids):
        a = torch.sin(x)
        if a[0, 0].item() > 0.2:
            a = a * 2
        b = torch.cos(a)
        return b if b.mean() > 0.7 else -b

    for seed in range(4):
        check(program(step), batches, 24, chooser=drawn(seed))


def test_results_are_kept_from_late_steps_on():
    runs = []

    def keeps():
        runs.append([])
        return runs[-1]

    def step(kept, number, x, ids):
        a = torch.sin(x)
        b = torch.cos(a)
        if number >= LATE:
            kept.append(a)
        return torch.exp(b), list(kept[-3:])

    check(program(step, keeps), batches)
    ours, plain = runs
    assert all(type(a) is torch.Tensor and torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, value):
        ctx.save_for_backward(weight, value)
        return weight * value

    @staticmethod
    def backward(ctx, grad):
        _, value = ctx.saved_tensors
        return grad * value, None


def test_autograd_keeps_a_value_from_late_steps_on():
    def step(weight, graphs, number, x, ids):
        a = torch.sin(x)
        b = torch.cos(a)
        graphs.append(_Square.apply(weight, a if number >= LATE else torch.ones_like(x)))
        del a
        results = [torch.exp(b)]
        if len(graphs) == 3:
            for graph in graphs:
                graph.sum().backward()
            results.append(weight.grad.clone())
            graphs.clear()
        return results

    check(program(step, lambda: torch.ones(8, 4, requires_grad=True), list), batches, 24)


def test_attributes_of_a_value():
    def step(number, x, ids):
        a = torch.sin(x)
        seen = hasattr(a, "mark")
        a.mark = number
        b = torch.cos(a)
        if number >= LATE:
            a.tolist()
        return b, seen, a.mark

    check(program(step), batches)


# -- outside tensors -------------------------------------------------------------------------------------------------


def test_outside_tensors_that_change_in_many_ways():
    def step(mean, scale, ema, number, x, ids):
        y = (x - mean) * scale + ema
        if number % 4 == 3:
            mean.data.mul_(1.5)
        if number == LATE:
            scale.numpy()[:] = 2
        ema.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y, torch.exp(x) * scale

    check(program(step, lambda: torch.full((4,), 0.1), lambda: torch.ones(4), lambda: torch.zeros(4)), batches)


@pytest.mark.parametrize(
    "outside",
    [
        lambda: torch.tensor([1.0, float("nan"), -0.0, float("inf")]),
        lambda: torch.ones(1).expand(4),
        lambda: torch.arange(8.0)[::2],
        lambda: torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).T,
        lambda: torch.ones(4, dtype=torch.complex64).conj(),
        lambda: torch.ones(4, dtype=torch.complex64).conj().imag,
        lambda: torch.ones(4, dtype=torch.float16),
        lambda: torch.ones(4, dtype=torch.bool),
        lambda: torch.ones(4, dtype=torch.complex128),
        lambda: torch.zeros(0, 4),
        lambda: torch.tensor(3.0),
        lambda: torch.arange(12.0).unfold(0, 4, 2)[:4],
    ],
)
def test_outside_tensors_of_every_kind(outside):
    def step(c, number, x, ids):
        if c.numel() == 0:
            return torch.cat([torch.sin(x), c])
        return torch.sin(x[:4]) * c, (torch.sin(x)[:, :4] + c[..., :4] if c.dim() == 1 else x)

    check(program(step, outside), batches)


@pytest.mark.parametrize("scalar", [float("nan"), -0.0, 1e-45, complex(0, -0.0), True, 3])
def test_scalars_of_every_kind(scalar):
    def step(number, x, ids):
        filled = torch.where(x > 0.5, x, 0.0)
        if isinstance(scalar, complex):
            return torch.sin(filled) * scalar
        return filled.masked_fill(x < 0.2, scalar * 1), torch.full_like(x, scalar)

    assert check(program(step), batches).moved >= 2


def test_numpy_scalars_by_their_bits():
    import numpy as np

    def step(number, x, ids):
        return torch.sin(x) * np.float32(0.0 if number < LATE else -0.0)

    check(program(step), batches)


# -- what a worker must not do ---------------------------------------------------------------------------------------


def test_random_numbers_stay_in_the_main_stream():
    def step(number, x, ids):
        noise = torch.rand_like(x)
        kept = F.dropout(torch.sin(x), 0.5)
        order = torch.randperm(len(x))
        weight = 0.0 if number < LATE else 1.0
        counts = torch.poisson(torch.sin(x) * 0 + torch.full_like(x, weight))
        return noise + x, kept, torch.cos(x)[order], counts

    check(program(step), batches)


def test_rates_of_zero_draw_nothing_until_they_do():
    def rates(number):
        x, ids = batches(number)
        return x * (number >= LATE), ids

    def step(number, x, ids):
        return torch.poisson(x * 3), torch.sin(x), torch.binomial((x > 0) * 5.0, torch.full_like(x, 0.5))

    check(program(step), rates)


def test_uninitialised_memory_is_not_sent():
    def step(number, x, ids):
        a, b, c = torch.empty_like(x), x.new_empty(3), x.new(2, 3)
        a.copy_(x)
        b.fill_(1)
        c.zero_()
        return torch.sin(a), b, c

    check(program(step), batches)


def test_full_sums_over_many_elements():
    def large(number):
        return batches(number, 20_000)

    def step(number, x, ids):
        return torch.sin(x).sum(), torch.sin(x).mean(0), (x * 0.1).sum()

    check(program(step), large, worker="one thread")


# -- results of every form -------------------------------------------------------------------------------------------


def test_results_in_tuples_lists_and_named_tuples():
    def step(number, x, ids):
        low, high = torch.sin(x).chunk(2, 1)
        values, where = torch.cos(x).max(1)
        both = x.aminmax()
        rows = torch.unbind(torch.exp(x), 0)
        counts = torch.unique(ids % 3, return_counts=True)
        ordered = torch.sort(x, 0)
        return low + high, values, where, both.min, rows[3], len(counts), ordered.values, ordered[1], list(x.split(3))

    for seed in range(4):
        check(program(step), batches, chooser=drawn(seed))
    assert check(program(step), batches).moved > 5


def test_the_same_tensor_under_several_names():
    def step(number, x, ids):
        a = torch.sin(x).contiguous()
        b = a.to(torch.float32)
        c = b.reshape(-1)
        d = b.view(4, 8)
        b = b + 0
        if number >= LATE:
            c[0] = 7
        return a, b, c, d, torch.exp(d), x.contiguous()

    for seed in range(6):
        check(program(step), batches, chooser=drawn(seed))


def test_boundary_values_that_share_memory_are_written_to():
    def step(number, x, ids):
        a = torch.sin(x)
        b, c = a[:4], a.T
        b.add_(1)
        return a, b, c, torch.cos(c)

    check(program(step), batches)


def test_rows_of_a_batch_one_by_one():
    def step(number, x, ids):
        total = 0.0
        for row in x:
            total = total + torch.sin(row)
        for row in torch.cos(x):
            total = total + row
        return total

    check(program(step), batches)


def test_conversions_by_name():
    def step(number, x, ids):
        return torch.sin(x.type(torch.float64)), x.type("torch.HalfTensor").type(), x.type_as(ids), ids.to(x)

    assert check(program(step), batches).moved >= 3


def test_numbers_of_a_tensor_as_arguments():
    def step(number, x, ids):
        n = (torch.sin(x[0, :1]).abs() * 0 + 3).long().squeeze()
        return torch.zeros(n, 2), x[:n], x[n], torch.tensor([n, 1]), [1, 2, 3, 4][n], torch.arange(n)

    for seed in range(4):
        check(program(step), batches, chooser=drawn(seed))


def test_casts_under_autocast_and_default_types():
    def step(weight, number, x, ids):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=number != LATE):
            a = torch.sin(x) @ torch.ones(4, 4)
            b = a @ weight
        torch.set_default_dtype(torch.float64 if number >= LATE + 2 else torch.float32)
        try:
            return a, b.detach(), torch.sin(x) @ torch.ones(4, 2, dtype=torch.float32), torch.arange(3.0)
        finally:
            torch.set_default_dtype(torch.float32)

    check(program(step, lambda: torch.eye(4, requires_grad=True)), batches)


def test_a_call_without_the_batch_comes_first():
    """Recording has begun when parameters meet the batch; the first call that moves needs no batch."""

    def step(weight, number, x, ids):
        scored = x @ weight
        positions = torch.arange(len(x), dtype=torch.float32)
        return scored.detach(), torch.sin(x) * positions[:, None]

    assert check(program(step, lambda: torch.ones(4, 4, requires_grad=True)), batches).moved >= 3


def test_a_batch_that_is_moved_to_the_device_where_it_is():
    def step(number, x, ids):
        x, ids = x.to("cpu", non_blocking=True), ids.to(torch.device("cpu"))
        return pairwise(x), ids * 2

    for ahead in (0, 1):
        assert check(program(step), batches, 24, ahead=ahead).moved >= 3
