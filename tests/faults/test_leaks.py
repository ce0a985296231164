"""Descriptors, processes and memory of the training process stay flat, whatever is left half way."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.faults.data import Numbers, PrivateRng, Shards, Sized
from tests.faults.harness import below, descriptors
from tests.faults.serve import assert_same, in_child, loader_of, served
from tests.waiting import await_that

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(60),
    pytest.mark.slow("caches fill first, then many rounds are counted"),
]

WARM = 3
"""Rounds before anything is counted: caches fill."""


def resident_kib() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum("stoker" in line for line in file)


def flat(rounds: int, act: Callable[[int], None], processes: int = 0) -> None:
    """Runs rounds, and requires after each that nothing has grown since the warm ones."""
    before: tuple[list[str], int, int] | None = None
    for number in range(rounds):
        act(number)
        gc.collect()
        await_that("processes end", lambda: len(below(os.getpid())) <= processes, 5.0)
        if number + 1 == WARM:
            before = sorted(descriptors(os.getpid())), resident_kib(), mappings()
    assert before is not None
    now = sorted(descriptors(os.getpid()))
    # a worker that is on its way out may still have its socket
    assert len(now) <= len(before[0]) + 3, [name for name in now if name not in before[0]]
    assert mappings() <= before[2]
    assert resident_kib() - before[1] < 8 << 10


def test_changing_dataset() -> None:
    """Each epoch sees another dataset, so that each needs a new template."""

    def check() -> None:
        with served(workers=2):
            dataset = Numbers(16)
            loader = loader_of(dataset)

            def epoch(number: int) -> None:
                dataset.length = 16 + number
                assert len(list(loader)) == -(-dataset.length // 4)

            flat(25, epoch, processes=3)

    in_child(check, 50.0)


KINDS: dict[str, Callable[[], DataLoader[Any]]] = {
    "elastic": lambda: loader_of(Numbers(64)),
    "pinned": lambda: loader_of(PrivateRng(64)),
    "shards": lambda: loader_of(Shards(64)),
    "persistent": lambda: loader_of(Numbers(64), persistent_workers=True),
    "large": lambda: loader_of(Sized([400_000] * 32)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_iterators_left_half_way(kind: str) -> None:
    def check() -> None:
        with served(workers=2):
            loader = KINDS[kind]()

            def part(number: int) -> None:
                for step, _ in enumerate(loader):
                    if step == number % 5:
                        break

            flat(20 if kind in ("elastic", "large") else 12, part, processes=3)

    in_child(check, 50.0)


@pytest.mark.parametrize("kind", ["elastic", "pinned", "persistent"])
def test_loaders_made_and_dropped(kind: str) -> None:
    def check() -> None:
        with served(workers=2):

            def use(number: int) -> None:
                loader = KINDS[kind]()
                next(iter(loader))
                if number % 2:
                    list(loader)

            flat(15, use)

    in_child(check, 50.0)


def test_iterators_that_were_never_asked() -> None:
    def check() -> None:
        with served(workers=2):
            loader = KINDS["elastic"]()
            flat(14, lambda _: iter(loader) and None, processes=3)

    in_child(check, 50.0)


def test_loops_that_raise() -> None:
    def check() -> None:
        with served(workers=2):
            loader = KINDS["elastic"]()

            def fail(number: int) -> None:
                try:
                    for _ in loader:
                        raise ZeroDivisionError
                except ZeroDivisionError:
                    pass

            flat(14, fail, processes=3)

    in_child(check, 50.0)


def test_two_iterators_at_once() -> None:
    with served(workers=2):
        loader = loader_of(Numbers(48))
        pairs = list(zip(loader, loader, strict=True))
        assert_same([one for one, _ in pairs], [other for _, other in pairs])
        assert len(pairs) == 12
        first, second = iter(loader), iter(loader)
        next(first)
        del first
        assert len(list(second)) == 12


def test_batches_outlive_their_loader() -> None:
    with served(workers=2):
        loader = loader_of(Sized([50_000] * 64))
        kept = list(loader)[::3]
        views = [batch[1].numpy() for batch in kept]
        del loader, kept
        gc.collect()
        for number, view in enumerate(views):
            assert (view == (12 * number + 1) % 251).all()
        assert torch.from_numpy(views[0]).shape == (50_000,)


def test_serving_that_is_closed_in_the_middle() -> None:
    before = below(os.getpid())  # other tests may have had Python start its resource tracker
    with served(workers=2):
        iterator = iter(loader_of(Numbers(64)))
        first = next(iterator)
    assert below(os.getpid()) == before
    assert torch.equal(first[0], Numbers(1)[0])
    with pytest.raises((RuntimeError, StopIteration)):
        next(iterator)
