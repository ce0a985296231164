"""What no name and no mode tells: writes by compiled functions, rounding by threads, caches of the program."""

from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from stoker.core.errors import BatchWrittenError
from stoker.graph.cut_control import MAX_VARIANTS, Cutter
from stoker.graph.functions import Effect, effect, rounds_by_threads
from stoker.graph.loop_memory import LoopMemory
from stoker.graph.watching.step_watcher import Conductor
from tests.graph.loop import FIRST_SUBSTITUTED, FREE, check
from tests.graph.test_substitution import batches, program

pytestmark = pytest.mark.timeout(30)
LATE = FIRST_SUBSTITUTED + 2


@functools.cache
def clip():
    """A compiled function that writes; modes do not see that it is called."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_clip_)


def _clip_(x: torch.Tensor) -> torch.Tensor:
    return x.clamp_(max=0.4)


WAYS = {
    "scripted": lambda x: clip()(x),
    "operator": lambda x: torch.ops.aten.clamp_max_.default(x, 0.4),
    "packet": lambda x: torch.ops.aten.clamp_max_(x, 0.4),
}


@pytest.mark.parametrize("first", [0, LATE])
@pytest.mark.parametrize("place", ["leaf", "inside", "boundary", "view"])
@pytest.mark.parametrize("way", sorted(WAYS))
def test_writes_that_no_mode_sees(way, place, first):
    clip()

    def step(number, x, ids):
        if number >= first and place == "leaf":
            WAYS[way](x)
        a = torch.sin(x)
        if number >= first and place == "inside":
            WAYS[way](a)
        b = torch.cos(a)
        v = b[2:5]
        if number >= first and place in ("boundary", "view"):
            WAYS[way](v if place == "view" else b)
        return b, v * 2, torch.exp(b)

    check(program(step), batches)


def test_operators_say_that_they_write():
    assert effect(torch.ops.aten.clamp_max_.default) is Effect.WRITES
    assert effect(torch.ops.aten.add.out) is Effect.WRITES
    assert effect(torch.ops.aten.add.Tensor) is Effect.NONE


def test_a_cache_by_weak_reference_misses_as_in_plain_python():
    def make():
        last: list[Any] = [lambda: None, -1]

        def step(number, x, ids):
            y = torch.sin(x)
            if number > FIRST_SUBSTITUTED:
                if last[0]() is not y:
                    last[:] = [weakref.ref(y), number]
                tag = last[1]
            else:
                tag = number
            return torch.cos(y) + 1, tag

        return step, lambda: None

    check(make, batches)


def test_a_value_from_before_an_unseen_write_is_never_computed_from_after_it():
    """In a late step the batch is written to, and what was made from it before is needed as it was not recorded."""
    clip()

    def step(number, x, ids):
        a = torch.sin(x)
        b = torch.cos(a)
        if number < LATE:
            return b
        clip()(x)
        return b, a * 3

    with pytest.raises(BatchWrittenError, match=r"`sin`.*--cut off"):
        check(program(step), batches)


def like(results):
    return list(results) if isinstance(results, tuple) else [results]


ROUNDING = {
    "sum": lambda x: (torch.sum, x),
    "mean": lambda x: (torch.mean, x),
    "var_mean": lambda x: (torch.var_mean, x.double()),
    "dot": lambda x: (torch.matmul, x, x),
    "cosine_similarity": lambda x: (functional.cosine_similarity, x, x, 0),
    "cross_entropy": lambda x: (functional.cross_entropy, x.view(-1, 4), torch.zeros(len(x) // 4, dtype=torch.int64)),
    "binary_cross_entropy": lambda x: (functional.binary_cross_entropy_with_logits, x, x),
    "kl_div": lambda x: (functional.kl_div, x, x),
    "sigmoid": lambda x: (torch.sigmoid, x),
    "expit": lambda x: (torch.special.expit, x),
    "silu": lambda x: (functional.silu, x),
    "gelu": lambda x: (functional.gelu, x),
    "exp2": lambda x: (torch.exp2, x),
    "special_exp2": lambda x: (torch.special.exp2, x),
    "complex_product": lambda x: (torch.Tensor.mul, torch.complex(x, x), torch.complex(x, x)),
}


@pytest.mark.parametrize("name", ROUNDING)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # kl_div, of its default
def test_calls_that_round_by_threads_stay(name):
    def rounds(elements):
        function, *args = ROUNDING[name](torch.ones(elements))
        tensors = [part for part in args if isinstance(part, torch.Tensor)]
        return rounds_by_threads(function, tuple(args), tensors, like(function(*args)))

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert rounds(40_000)
        assert not rounds(4_000)
        torch.set_num_threads(1)
        assert not rounds(40_000)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "function",
    [torch.amax, torch.median, torch.argmax, torch.count_nonzero, torch.abs, torch.square, lambda x: x.long().sum()],
)
def test_calls_that_pick_or_count_move_on_any_threads(function):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        large = torch.ones(40_000)
        assert not rounds_by_threads(function, (large,), [large], like(function(large)))
    finally:
        torch.set_num_threads(threads)


def test_large_sigmoids_are_the_same_in_every_step():
    def step(number, x, ids):
        return torch.sigmoid(x * 10), (torch.sin(x) * 2).mean(), torch.log1p(x) ** 2

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert check(program(step), lambda number: batches(number, 12_501), worker="one thread").moved
    finally:
        torch.set_num_threads(threads)


def test_the_memory_of_a_loop_is_bounded():
    """A loader for every epoch, each with batches of sizes of its own."""
    memory, conductor = LoopMemory(), Conductor()
    for epoch in range(40):
        cutter = Cutter(conductor, lambda _: None, lambda _: None, FREE, tried=False, memory=memory)
        for _ in range(8):
            cutter.asked()
            (x,) = cutter.delivered((torch.rand(epoch + 1),))
            torch.log1p(x).sum().item()
        cutter.asked()
        cutter.left()
    assert 0 < len(memory.recordings) <= 2 * MAX_VARIANTS


def test_operations_are_counted_from_the_middle_of_a_late_step():
    def step(number, x, ids):
        y = torch.sin(x)
        if number < LATE:
            return y @ torch.ones(4, 4), 256
        with FlopCounterMode(display=False) as counter:
            z = y @ torch.ones(4, 4)
        return z, counter.get_total_flops()

    check(program(step), batches)
