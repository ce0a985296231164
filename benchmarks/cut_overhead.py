"""What the cut costs the training process: a verified call, a recorded step, what comes after a safe point, compiling.

One process and one thread: what a data worker would do with a batch is done between steps, outside of what is timed.
Times are processor times of that thread, which waits for nothing. And what it costs a loop that does nothing with its
batches, as programs time a loader: with real workers, in processes of their own, by the wall clock.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.support.arms import Program, arms
from benchmarks.support.harness import Bar, Options, Report, Spread, alternate, no_collections, ratios, run
from stoker.graph.choice.cut import Prices
from stoker.graph.cut_control import RECORDED_STEPS, SKIPPED_BATCHES, Cutter, CutVerdict
from stoker.graph.watching.step_watcher import Conductor

BAR = Bar(
    "cut_overhead",
    "a verified call, a recorded step, calls after a safe point, compilations, an empty loop",
    headline=("verified_us", "recording_ratio", "after_ratio", "extra_compilations", "empty_ratio"),
)
CALLS = 200
"""Stateless calls of a step: more than any of the programs that were looked at has."""
STEP_S = 5e-3
MICRO = 1e6
FREE = Prices(bytes_per_s=1e15, tensor_s=0.0, verify_s=0.0, worker_s_price=0.0, min_saving_frac=0.0)
"""All that can move moves, also where it does not pay, as here."""

Body = Callable[[torch.Tensor], torch.Tensor]


class Loop:
    """A loop over batches whose steps are watched, or left alone; workers are played between the steps."""

    def __init__(self, *, cut: bool) -> None:
        self._stage: Any = None
        self.verdicts: list[CutVerdict] = []
        self.conductor = Conductor()
        self._cutter = Cutter(self.conductor, self._ship, self.verdicts.append, FREE, tried=False) if cut else None

    def _ship(self, stage: bytes) -> None:
        self._stage = pickle.loads(stage) if stage else None

    def step(self, body: Body, batch: torch.Tensor) -> tuple[float, float]:
        """Seconds of a step, and of what stoker does around it."""
        rows = batch.clone()
        prepared = self._stage((rows,)) if self._stage is not None else (rows,)
        begun = time.thread_time()
        if self._cutter is not None:
            self._cutter.asked()
            (rows,) = self._cutter.delivered(prepared)
        entered = time.thread_time()
        body(rows)
        left = time.thread_time()
        return left - entered, entered - begun

    def end(self) -> None:
        """The loop is left."""
        if self._cutter is not None:
            self._cutter.left()

    @property
    def moved(self) -> int:
        """Calls that are moved."""
        return len(self.verdicts[-1].cut.moved) if self.verdicts else 0


def chain(calls: int, head: nn.Module) -> Body:
    """Cheap calls one after another, then a model: what is there to verify is as dear as it gets beside the calls."""

    def body(rows: torch.Tensor) -> torch.Tensor:
        for _ in range(calls // 2):
            rows = torch.sin(rows) * 2
        return head(rows).sum()

    return body


def measure(options: Options) -> Report:
    """The five parts."""
    torch.set_num_threads(1)
    report = Report()
    _verifying(report, options)
    _recording(report, options)
    _after(report, options)
    _compiling(report, options)
    _empty(report, options)
    return report


def _lowest(loop: Loop, body: Body, batch: torch.Tensor, steps: int) -> tuple[float, float]:
    """The lowest times of a step and of what is around it: what disturbs only adds."""
    with no_collections():
        found = [loop.step(body, batch) for _ in range(steps)]
    return min(inside for inside, _ in found), min(around for _, around in found)


def _verifying(report: Report, options: Options) -> None:
    body, batch = chain(CALLS, nn.Linear(8, 1)), torch.rand(64, 8)
    steps = options.pick(200, 60, 3)
    loops = {"substituted": Loop(cut=True), "plain": Loop(cut=False)}
    for _ in range(20):  # recorded, compared, moved
        loops["substituted"].step(body, batch)
    moved = loops["substituted"].moved
    around: list[float] = []

    def one(name: str) -> float:
        inside_s, around_s = _lowest(loops[name], body, batch, steps)
        if name == "substituted":
            around.append(MICRO * around_s)
        return MICRO * inside_s / CALLS

    found = alternate(options.rounds, {name: lambda name=name: one(name) for name in loops})
    for loop in loops.values():
        loop.end()
    report.note(
        f"a chain of {CALLS} cheap calls on 512 numbers, {moved} of them moved; lowest of {steps} steps a round"
    )
    rows = [[name, *Spread.of(values).show(2)] for name, values in found.items()]
    report.table(["µs a call", "median", "lowest - highest"], rows)
    report.table(["µs a step, beside its calls", "median", "lowest - highest"], [["asked", *Spread.of(around).show(1)]])
    report.figure("substituted_us", Spread.of(found["substituted"]).median)
    report.at_least("moved", "calls moved, of those of the chain", [moved / CALLS], 1.0)
    added = [a - b for a, b in zip(found["substituted"], found["plain"], strict=True)]
    report.at_most("verified_us", "verified call less the plain call, which is saved", added, 4.0, 2, " µs")


def _recording(report: Report, options: Options) -> None:
    """Recorded steps beside plain ones; choosing the cut, once after four of them, apart."""
    head, batch = nn.Linear(8, 1), torch.rand(64, 8)
    large = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    inputs, chained = torch.rand(64, 256), chain(CALLS, head)
    times = options.pick(10, 5, 1)
    repeats = _repeats(large, inputs, chained, batch)

    def body(rows: torch.Tensor) -> torch.Tensor:
        found = chained(rows)
        for _ in range(repeats):  # the model: calls that depend on parameters
            found = found + large(inputs).sum()
        return found

    settled: list[float] = []

    def recorded() -> float:
        best = float("inf")
        for _ in range(times):
            loop = Loop(cut=True)
            found = [loop.step(body, batch) for _ in range(SKIPPED_BATCHES + RECORDED_STEPS + 1)]
            # What follows a recorded step (its trace is closed) is found around the next one; so is the choice.
            steps = [inside + after for (inside, _), (_, after) in itertools.pairwise(found)]
            best = min(best, *steps[SKIPPED_BATCHES : SKIPPED_BATCHES + RECORDED_STEPS - 1])
            settled.append(1e3 * found[-1][1])
            loop.end()
        return 1e3 * best

    def plain() -> float:
        loop = Loop(cut=False)
        return 1e3 * min(loop.step(body, batch)[0] for _ in range(times * RECORDED_STEPS))

    found = alternate(options.rounds, {"recorded": recorded, "plain": plain})
    rows = [[name, *Spread.of(values).show(2)] for name, values in found.items()]
    report.table(
        [f"ms a step with {CALLS} stateless calls", "median", "lowest - highest"],
        [*rows, ["choosing the cut, once", *Spread.of(settled).show(2)]],
    )
    cost = [MICRO * (a - b) / 1e3 / CALLS for a, b in zip(found["recorded"], found["plain"], strict=True)]
    report.figure("recorded_us", Spread.of(cost).median)
    # A machine that was busy when the model was measured leaves steps that are too short: their cost counts for 5 ms.
    least = 1e3 * STEP_S
    ratio = [1 + (a - b) / max(b, least) for a, b in zip(found["recorded"], found["plain"], strict=True)]
    report.at_most("recording_ratio", "recorded / plain step of at least 5 ms", ratio, 2.0)


def _repeats(large: nn.Module, inputs: torch.Tensor, chained: Body, batch: torch.Tensor) -> int:
    """How often the model must run for a step of at least ``STEP_S``."""

    def seconds(call: Callable[[], Any]) -> float:
        found: list[float] = []
        for _ in range(20):
            begun = time.thread_time()
            call()
            found.append(time.thread_time() - begun)
        return min(found)

    left = STEP_S - seconds(lambda: chained(batch))
    return max(1, 1 + int(left / seconds(lambda: large(inputs).sum())))


def _after(report: Report, options: Options) -> None:
    """The calls that follow the first call of a module after the cut's last one."""
    body_calls, batch = chain(20, nn.Linear(8, 1)), torch.rand(64, 8)
    weight = torch.rand(64, 8, requires_grad=True)
    module, steps = nn.Identity(), options.pick(200, 60, 3)
    loops = {"cut": Loop(cut=True), "plain": Loop(cut=False)}
    spent: list[float] = []
    left_on_stack: list[int] = []

    def body(rows: torch.Tensor) -> torch.Tensor:
        found = module(body_calls(rows))
        left_on_stack.append(torch._C._len_torch_function_stack())
        begun = time.thread_time()
        for _ in range(CALLS):
            found = weight * 2
        spent.append(time.thread_time() - begun)
        return found

    for _ in range(20):
        loops["cut"].step(body, batch)
    left_on_stack.clear()

    def one(name: str) -> float:
        spent.clear()
        _lowest(loops[name], body, batch, steps)
        return MICRO * min(spent) / CALLS

    found = alternate(options.rounds, {name: lambda name=name: one(name) for name in loops})
    for loop in loops.values():
        loop.end()
    rows = [[name, *Spread.of(values).show(3)] for name, values in found.items()]
    report.table(["µs a call, after a safe point", "median", "lowest - highest"], rows)
    report.at_most("modes_left", "modes on the stack after a safe point", [max(left_on_stack)], 0, 0)
    ratio = [a / b for a, b in zip(found["cut"], found["plain"], strict=True)]
    report.at_most("after_ratio", "calls after a safe point, with the cut / plain", ratio, 1.03, 3)


def _compiling(report: Report, options: Options) -> None:
    """A compiled model behind a stateless chain: frames, graphs and guard failures as its compiler counts them."""
    steps = options.pick(40, 30, 16)
    counted = {name: _compilations(steps, cut=name == "cut") for name in ("plain", "cut")}
    keys = sorted(set(counted["cut"]) | set(counted["plain"]))
    differing = [key for key in keys if counted["cut"].get(key, 0) != counted["plain"].get(key, 0)]
    rows = [[key, str(counted["plain"].get(key, 0)), str(counted["cut"].get(key, 0))] for key in keys]
    report.table(["compiler's counters", "plain", "cut"], rows)
    extra = counted["cut"].get("frames.total", 0) - counted["plain"].get("frames.total", 0)
    report.at_most("extra_compilations", "frames compiled beyond those without a cut", [extra], 0, 0)
    report.at_most("differing_counters", "counters that differ", [len(differing)], 0, 0)


def _compilations(steps: int, *, cut: bool) -> dict[str, int]:
    dynamo = importlib.import_module("torch._dynamo")
    counters = importlib.import_module("torch._dynamo.utils").counters
    dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = Loop(cut=cut)

    def body(rows: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            rows = torch.sin(rows) * 2
        loss = model(rows).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(steps):
        loop.step(body, torch.rand(64, 8))
    loop.end()
    if cut and not loop.moved:
        raise RuntimeError("nothing was moved before the compiled model: there is nothing to count")
    found = {f"{group}.{key}": int(count) for group, counts in counters.items() for key, count in counts.items()}
    dynamo.reset()
    gc.collect()
    return {key: count for key, count in found.items() if key.partition(".")[0] in ("frames", "recompiles", "stats")}


def _empty(report: Report, options: Options) -> None:
    """``for batch in loader: pass`` over small batches, with the cut and without it; twice without it to compare."""
    steps, warming = options.pick(4000, 2000, 30), options.pick(1000, 1000, 30)
    rounds = options.pick(3 * options.rounds, 2 * options.rounds, 1)
    sides = {name: {"cut": "exact" if name == "cut" else "off", "workers": 1} for name in ("cut", "off", "again")}
    with arms(_EMPTY, warming + rounds * steps, sides) as found:
        for arm in found.values():
            arm.run(warming)
        worked: dict[str, list[float]] = {name: [] for name in sides}

        def one(name: str) -> float:
            stretch = found[name].run(steps)
            worked[name].append(stretch.processor_s)
            return stretch.seconds

        seconds = alternate(rounds, {name: lambda name=name: one(name) for name in sides})
    report.note(f"an empty loop over batches of {_EMPTY.batch_size} small rows: {rounds} stretches of {steps} each way")
    for what, times, key in (("", seconds, "empty"), (", processor time", worked, "empty_processor")):
        rows = [[name, *Spread.of([MICRO * s / steps for s in values]).show(1)] for name, values in times.items()]
        report.table([f"µs a step of an empty loop{what}", "median", "lowest - highest"], rows)
        report.figure(f"{key}_control", Spread.of(ratios(times["again"], times["off"])).median)
        report.at_most(
            f"{key}_ratio", f"an empty loop, with the cut / off{what}", ratios(times["cut"], times["off"]), 1.03, 3
        )


def _small_rows() -> tuple[torch.Tensor, ...]:
    return torch.rand(4096, 8), torch.zeros(4096, dtype=torch.int64)


def _nothing(_: Any) -> float:
    return 0.0


_EMPTY = Program("empty", 16, _small_rows, lambda: _nothing)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
