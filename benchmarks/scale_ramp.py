"""How soon a program that waits for its input has the rate that it could have, and that no short loop is slower.

Items wait (emulated by sleeping), and so does the step: six workers are what it takes. The best rate is that of eight
fixed workers.
Each job is a process of its own; jobs of one kind run one after the other, some of them while other processes keep all
cores busy. The short loops are timed by themselves, under torch's own loader and under stoker in turn.
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.support.emulated import Dial, Waiting, in_children
from benchmarks.support.harness import Bar, Options, Report, alternate, number, ratios, run
from benchmarks.support.served import stoker

BAR = Bar(
    "scale_ramp",
    "from the first batch to 90 % of the best rate; loops of 100 batches against plain python",
    headline=("ramp", "ramp_crowded", "short_loops"),
)
NEED = 6
"""Workers that the emulated step can use."""
ENOUGH = 0.9
BATCHES = 100


def measure(options: Options) -> Report:
    """All kinds of jobs, then the short loops."""
    report = Report()
    items = options.pick((0.02, 0.05, 0.16, 0.5), (0.02, 0.16, 0.5), (0.02,))
    declared = options.pick((0, 1, 2, 8), (0, 1, 2, 8), (1,))
    rounds = options.pick(options.rounds, 1, 1)
    _ramps(report, "ramp", items, declared, rounds)
    with _hogs():
        _ramps(report, "ramp_crowded", items[1:2] or items, declared[:2], options.pick(options.rounds, 3, 1))
    _short_loops(report, options)
    return report


def _ramps(report: Report, key: str, items: tuple[float, ...], declared: tuple[int, ...], rounds: int) -> None:
    rows: list[list[str]] = []
    worst = 0.0
    for item_s in items:
        best = in_children(1, functools.partial(_best_rate, item_s))[0]
        for workers in declared:
            allowed_s = 12 * item_s + 1.0
            job = functools.partial(_ramp_s, item_s, workers, best)
            found = sorted(in_children(1, job)[0] for _ in range(rounds))
            took_s = found[len(found) // 2]
            worst = max(worst, took_s / allowed_s)
            rows.append([f"{1000 * item_s:.0f} ms, {workers} declared", number(took_s), number(allowed_s)])
    crowded = ", all cores busy with others" if key == "ramp_crowded" else ""
    report.table([f"items that wait{crowded}", "s to 90 % of the best rate", "allowed"], rows)
    report.at_most(key, f"worst time to 90 % of the best rate / allowed{crowded}", [worst], 1.0)


def _best_rate(item_s: float) -> float:
    """Batches a second with more workers than the step can use: what handing over leaves of the step's own rate."""
    dial, length = Dial(item_s), math.ceil(max(2.0, 8 * item_s) * NEED / item_s)
    with stoker(workers=NEED + 2) as served:
        iterator = served.iterate(DataLoader(Waiting(10**6, dial.path), batch_size=1, num_workers=1))
        for _ in range(length // 2):
            next(iterator)
            time.sleep(item_s / NEED)
        begun = time.perf_counter()
        for _ in range(length):
            time.sleep(item_s / NEED)
            next(iterator)
        took_s = time.perf_counter() - begun
        del iterator
    return length / took_s


def _ramp_s(item_s: float, declared: int, best: float) -> float:
    """Seconds from the first batch until the rate is there, for the second and six items that follow."""
    step_s, span_s = item_s / NEED, max(1.0, NEED * item_s)
    dial = Dial(item_s)
    came: list[float] = []
    with stoker() as served:
        iterator = served.iterate(DataLoader(Waiting(10**6, dial.path), batch_size=1, num_workers=declared))
        next(iterator)
        first_s = time.perf_counter()
        end_s = first_s + 2 * (12 * item_s + 1.0) + span_s
        while (now_s := time.perf_counter()) < end_s:
            came.append(now_s - first_s)
            time.sleep(step_s)
            next(iterator)
        del iterator
    last_s, end = came[-1], 0
    for begin, at_s in enumerate(came):
        while end < len(came) and came[end] <= at_s + span_s:
            end += 1
        if at_s + span_s > last_s:
            break
        if end - begin >= ENOUGH * best * span_s:
            return at_s
    return math.inf


@contextmanager
def _hogs() -> Iterator[None]:
    """All cores are taken by other processes."""
    context = multiprocessing.get_context("fork")
    hogs = [context.Process(target=_burn, daemon=True) for _ in range(os.cpu_count() or 1)]
    for hog in hogs:
        hog.start()
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.join()


def _burn() -> None:
    while True:
        pass


class _Rows:
    """Small samples that take nothing, or wait, or compute."""

    def __init__(self, wait_s: float, compute_s: float) -> None:
        self.wait_s = wait_s
        self.compute_s = compute_s

    def __len__(self) -> int:
        return 8 * BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.wait_s:
            time.sleep(self.wait_s)
        until_s = time.perf_counter() + self.compute_s
        while self.compute_s and time.perf_counter() < until_s:
            pass
        return torch.full((16,), float(index))


_LOOPS: dict[str, Callable[[], DataLoader[Any]]] = {
    "small rows, 2 workers": lambda: _loader(0.0, 0.0, 2),
    "rows that wait 1 ms, 2 workers": lambda: _loader(1e-3, 0.0, 2),
    "rows that compute 0.5 ms, 2 workers": lambda: _loader(0.0, 5e-4, 2),
    "rows that compute 0.5 ms, none declared": lambda: _loader(0.0, 5e-4, 0),
}


def _loader(wait_s: float, compute_s: float, workers: int) -> DataLoader[Any]:
    rows: Any = _Rows(wait_s, compute_s)
    return DataLoader(rows, batch_size=8, num_workers=workers)


def _short_loops(report: Report, options: Options) -> None:
    pairs = options.pick(15, 5, 1)
    rows: list[list[str]] = []
    lowest: list[float] = []
    for name, make in _LOOPS.items():
        found = alternate(
            pairs,
            {
                "plain": lambda make=make: in_children(1, lambda: _loop_s(make, served=False))[0],
                "stoker": lambda make=make: in_children(1, lambda: _loop_s(make, served=True))[0],
            },
        )
        speed = sorted(ratios(found["plain"], found["stoker"]))
        low = _lower_bound(speed)
        lowest.append(low)
        rows.append([name, number(speed[len(speed) // 2]), number(low), f"{number(speed[0])} - {number(speed[-1])}"])
    report.table([f"loops of {BATCHES} batches, plain / stoker", "median", "lower bound", "lowest - highest"], rows)
    report.at_least("short_loops", f"lower bound of {pairs} pairs, worst loop", [min(lowest)], 0.98)


def _loop_s(make: Callable[[], DataLoader[Any]], *, served: bool) -> float:
    """Seconds of the loop alone."""
    loader = make()
    with stoker() as stokers:
        begun = time.perf_counter()
        for _ in stokers.iterate(loader) if served else loader:
            pass
        return time.perf_counter() - begun


def _lower_bound(values: list[float]) -> float:
    """Of the median, with 95 % confidence from 8 values on (order statistics); the lowest of fewer."""
    count = len(values)
    below, total = 0, 0.0
    while True:
        total += math.comb(count, below) * 0.5**count
        if total > 0.05:
            break
        below += 1
    return values[max(0, below - 1)]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
