"""Every cut of a small program, really run: what each costs the training process, its transport and its workers.

One thread plays both sides in turn: the worker's calls between the steps, then a copy of what crosses the boundary into
memory that is there (as into a slot), then the step with the cut. The three are timed apart and added up by the prices
by which cuts are chosen, so that the chosen one can be compared with all others.
"""

from __future__ import annotations

import itertools
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.programs.dataflows import enumerate_cuts
from benchmarks.support.harness import no_collections
from stoker.graph.choice import reasons
from stoker.graph.choice.cost_model import CutAccounts
from stoker.graph.choice.cut import Prices, choose
from stoker.graph.cut_control import RECORDED_STEPS, SKIPPED_BATCHES, Cutter, CutVerdict, measure_bandwidth
from stoker.graph.dataflow import Cut, Graph
from stoker.graph.replay.stage import Prepared
from stoker.graph.watching.step_watcher import Conductor

Batch = tuple[torch.Tensor, ...]
Body = Callable[[Batch], torch.Tensor]
_SETTLING = SKIPPED_BATCHES + RECORDED_STEPS + 6


@dataclass(frozen=True)
class Small:
    """A program with few stateless calls."""

    name: str
    batch: Batch
    body: Body


def programs() -> list[Small]:
    """What shrinks, what expands, and columns of a table where some of either is best."""
    draw = torch.Generator().manual_seed(0)
    conv, table, mixed = nn.Conv2d(3, 4, 3), nn.Linear(100, 4), nn.Linear(116, 4)

    def photographs(batch: Batch) -> torch.Tensor:
        (images,) = batch
        return conv(F.avg_pool2d(images.float() / 255.0 - 0.5, 4)).sum()

    def classes(batch: Batch) -> torch.Tensor:
        (labels,) = batch
        return table(F.one_hot(labels, 100).float()).sum()

    def columns(batch: Batch) -> torch.Tensor:
        counts, ids = batch
        hashed = (ids * 2_654_435_761 + 40_503) % 100
        dense = torch.log1p(counts).clamp(0.0, 3.0)
        return mixed(torch.cat([dense, F.one_hot(hashed, 100).float()], 1)).sum()

    return [
        Small("photographs", (torch.randint(0, 256, (8, 3, 96, 96), generator=draw, dtype=torch.uint8),), photographs),
        Small("classes", (torch.randint(0, 100, (4096,), generator=draw),), classes),
        Small(
            "columns",
            (torch.rand(2048, 16, generator=draw) * 100, torch.randint(0, 1 << 40, (2048,), generator=draw)),
            columns,
        ),
    ]


class Run:
    """A program with one cut, or with the one that is chosen."""

    def __init__(self, program: Small, prices: Prices, moved: frozenset[int] | None = None) -> None:
        self._program, self._moved, self._stage = program, moved, None
        self._prices = prices
        self._verdicts: list[CutVerdict] = []
        self.graph: Graph | None = None
        self.chosen = frozenset[int]()
        self._cutter = Cutter(Conductor(), self._ship, self._verdicts.append, prices, tried=False, chooser=self._choose)
        for _ in range(_SETTLING):
            self.step()
        self.end()

    def _ship(self, stage: bytes) -> None:
        self._stage = pickle.loads(stage) if stage else None

    def _choose(self, graph: Graph, prices: Prices) -> Cut:
        self.graph = graph
        cut = choose(graph, prices) if self._moved is None else _cut_of(graph, self._moved, prices)
        self.chosen = cut.moved
        return cut

    def step(self) -> float:
        """Seconds of a step by the prices: of the training process, of the copy, and the workers' share."""
        begun = time.thread_time()
        prepared = self._stage(self._program.batch) if self._stage is not None else self._program.batch
        worked_s = time.thread_time() - begun
        copied_s = 0.0
        if isinstance(prepared, Prepared):
            slots = [torch.zeros_like(tensor) for tensor in prepared.tensors]
            begun = time.thread_time()
            for slot, tensor in zip(slots, prepared.tensors, strict=True):
                slot.copy_(tensor)
            copied_s = time.thread_time() - begun
            prepared = replace(prepared, tensors=tuple(slots))
        begun = time.thread_time()
        self._cutter.asked()
        self._program.body(self._cutter.delivered(prepared))
        stepped_s = time.thread_time() - begun
        return stepped_s + copied_s + worked_s * self._prices.worker_s_price

    def end(self) -> None:
        """The loop is left for now."""
        self._cutter.left()

    def lowest(self, steps: int) -> float:
        """Lowest seconds of some steps: what disturbs only adds."""
        with no_collections():
            found = min(self.step() for _ in range(steps))
        self.end()
        return found


def _cut_of(graph: Graph, moved: frozenset[int], prices: Prices) -> Cut:
    ledger = CutAccounts(graph, prices)
    boundary = ledger.sent(moved)
    return Cut(moved, boundary, 1.0, 0.0, 0, reasons.reasons(ledger, moved))


@dataclass(frozen=True)
class Finding:
    """What trying every cut of a program has shown; seconds are medians over rounds."""

    name: str
    cuts: int
    chosen: int
    """Calls that the chosen cut moves."""
    whole_s: float
    chosen_s: float
    best_s: float

    @property
    def share(self) -> float:
        """A step with the best cut / one with the chosen cut."""
        return self.best_s / self.chosen_s


def try_every_cut(program: Small, rounds: int, steps: int) -> Finding:
    """Runs a program with each of its cuts in turn, round after round."""
    torch.set_num_threads(1)
    prices = Prices(bytes_per_s=measure_bandwidth())
    chosen = Run(program, prices)
    assert chosen.graph is not None
    cuts = [cut for cut in enumerate_cuts(chosen.graph) if cut != chosen.chosen]
    runs: dict[Any, Run] = {cut: Run(program, prices, cut) for cut in cuts}
    runs[chosen.chosen] = chosen
    found: dict[Any, list[float]] = {cut: [] for cut in runs}
    for _, (cut, one) in itertools.product(range(rounds), list(runs.items())):
        found[cut].append(one.lowest(steps))
    seconds = {cut: median(values) for cut, values in found.items()}
    return Finding(
        program.name,
        len(runs),
        len(chosen.chosen),
        seconds[frozenset()],
        seconds[chosen.chosen],
        min(seconds.values()),
    )
