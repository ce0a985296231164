"""What is reported of a run is what its program measures with a clock of its own around the loader's calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import stoker
from benchmarks.honest_report import Compared, compare
from benchmarks.programs.timed_program import Loop
from stoker.feed.loader.iterator import FedIterator
from stoker.feed.order.sampling import Order
from stoker.feed.shell.engine import Engine
from stoker.feed.state.machine import Machine
from stoker.graph.cut_control import Cutter

pytestmark = pytest.mark.integration


@pytest.mark.slow("long enough for rates to be told to 2 percent")
@pytest.mark.parametrize("cut", ["always", "off"])
def test_report_says_what_the_program_measures(cut: str) -> None:
    loops = [
        Loop(name="elastic", step_ms=1.0, item_ms=0.2, batches=150, epochs=2, train=True, pause_ms=300),
        Loop(name="small batches", batches=1000),
        Loop(name="pinned", step_ms=1.0, batches=200, by_worker=True),
        Loop(name="in process", step_ms=1.0, batches=100, epochs=2, workers=0, pause_ms=300),
    ]
    whole: list[Compared] = []

    def is_right() -> bool:
        whole[:] = [each for each in compare(loops, ["--cut", cut]) if each.window == "whole run"]
        assert [each.loop for each in whole] == [loop.name for loop in loops]
        return all(
            each.rate_off_percent < 2 and each.parts_off_percent < 0.5 and each.wait_off_points < 4 for each in whole
        )

    assert _at_some_time(is_right, 3), whole


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4 * 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), index)


DELAY_S = 0.004


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Engine, "pump"),
        (Engine, "_delivered"),
        (Engine, "next_item"),
        (Machine, "on"),
        (Engine, "next_batch"),
        (Order, "advance"),
        (Cutter, "delivered"),
        (Cutter, "asked"),
        (FedIterator, "_next_data"),
    ],
)
def test_a_delay_planted_anywhere_in_next_is_input_wait(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(owner, name)

    def off_percent() -> float:
        spent_s: list[float] = []

        def delayed(*arguments: Any, **keywords: Any) -> Any:
            begun = time.perf_counter()
            time.sleep(DELAY_S)
            spent_s.append(time.perf_counter() - begun)
            return real(*arguments, **keywords)

        with stoker.feeding(quiet=True, workers=1), monkeypatch.context() as planted:
            loader = DataLoader(Rows(), 4, num_workers=1)
            iterator = iter(loader)
            next(iterator)
            planted.setattr(owner, name, delayed)
            begun = time.perf_counter()
            for _ in range(39):
                next(iterator)
            wall_s = time.perf_counter() - begun
            found = stoker.stats(loader)
            planted.undo()
            del iterator
        assert len(spent_s) >= 39
        assert sum(spent_s) <= found.input_wait_s
        parts_s = found.input_wait_s + found.program_s
        return 100 * max(abs(parts_s / wall_s - 1), abs(found.samples_per_s * wall_s / (4 * 39) - 1))

    assert _at_some_time(lambda: off_percent() < 2)


def _at_some_time(is_right: Callable[[], bool], times: int = 8) -> bool:
    """What is booked wrongly is so each time; between the program's clock and ours there may be no core for a while."""
    return any(is_right() for _ in range(times))


def test_two_loaders_taken_in_turn_have_the_rate_of_the_loop() -> None:
    def off_percent() -> float:
        with stoker.feeding(quiet=True, workers=1):
            loaders = [DataLoader(Rows(), 4, num_workers=1) for _ in range(2)]
            iterators = [iter(loader) for loader in loaders]
            marks: list[list[float]] = [[], []]
            for _ in range(40):
                for iterator, mark in zip(iterators, marks, strict=True):
                    next(iterator)
                    mark.append(time.perf_counter())
                time.sleep(0.003)
            found = [stoker.stats(loader) for loader in loaders]
            del iterator, iterators
        assert all(each.program_s >= 39 * 0.003 for each in found)
        rates = [4 * 39 / (mark[-1] - mark[0]) for mark in marks]
        return 100 * max(abs(each.samples_per_s / rate - 1) for each, rate in zip(found, rates, strict=True))

    assert _at_some_time(lambda: off_percent() < 2)
