"""An ordinary program that times its own loops: ``python timed_program.py LOOP…``, where a loop is a JSON object.

It knows nothing of stoker. Around each ``iter`` and ``next`` it reads ``time.perf_counter``, and prints a line of JSON
for each loop: at every delivery the time, and until then the samples, the time inside those calls, and the time between
an epoch's end and the next ``iter``.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """What a loop is made of."""

    name: str
    step_ms: float = 0.0
    item_ms: float = 0.0
    batches: int = 100
    """Of an epoch."""
    epochs: int = 1
    workers: int = 2
    width: int = 64
    """Floats of a sample."""
    train: bool = False
    """The step computes something from the batch, and an optimizer steps."""
    by_worker: bool = False
    """Samples depend on the worker that makes them."""
    pause_ms: float = 0.0
    """Between epochs."""


BATCH_SIZE = 16


class Rows(Dataset[torch.Tensor]):
    """Rows of a matrix in memory; a read from elsewhere is emulated by a sleep."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._rows = torch.randn(512, loop.width)

    def __len__(self) -> int:
        return self._loop.batches * BATCH_SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._loop.item_ms:
            time.sleep(1e-3 * self._loop.item_ms)
        worker = get_worker_info() if self._loop.by_worker else None
        return self._rows[index % 512] + (worker.id if worker is not None else 0)


def step_of(loop: Loop) -> Any:
    """What the program does with a batch."""
    model = torch.nn.Linear(loop.width, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(batch: torch.Tensor) -> None:
        if loop.step_ms:
            time.sleep(1e-3 * loop.step_ms)
        if loop.train:
            loss = model(torch.log1p(batch.abs()).sqrt()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def run(loop: Loop) -> list[tuple[float, int, float, float]]:
    """Runs a loop; at each delivery: time, samples, time inside the loader's calls, pauses."""
    loader = DataLoader(Rows(loop), BATCH_SIZE, num_workers=loop.workers)
    step, clock = step_of(loop), time.perf_counter
    marks: list[tuple[float, int, float, float]] = []
    samples, waited_s, paused_s, ended = 0, 0.0, 0.0, None
    for _ in range(loop.epochs):
        time.sleep(1e-3 * loop.pause_ms)
        asked = clock()
        if ended is not None:
            paused_s += asked - ended
        iterator = iter(loader)
        waited_s += clock() - asked
        while True:
            asked = clock()
            try:
                batch = next(iterator)
            except StopIteration:
                ended = clock()
                waited_s += ended - asked
                break
            delivered = clock()
            waited_s += delivered - asked
            samples += len(batch)
            marks.append((delivered, samples, waited_s, paused_s))
            step(batch)
    return marks


def main() -> None:
    """Runs the loops that are named."""
    torch.manual_seed(0)
    for text in sys.argv[1:]:
        loop = Loop(**json.loads(text))
        print(json.dumps({"name": loop.name, "marks": run(loop)}), flush=True)


if __name__ == "__main__":
    main()
