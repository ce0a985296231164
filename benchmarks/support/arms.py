"""A training program under several settings at once: a process each, stretches in turn, every loss kept.

Each arm is forked and runs its program alone while the others wait, so that neither modes nor random streams of one
reach another. What finding a cut costs (recorded and compared steps, the trial) lies in the stretches like all else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.served import stoker
from stoker.records import events

StepFunction = Callable[[Any], float]
"""A training step on a batch; returns the loss."""


@dataclass(frozen=True)
class Program:
    """A training program.

    Attributes:
        start: makes the model; returns the step. Called once, right after the seed is set.
        rows: samples to draw batches from, tensor by tensor along the first dimension; repeated.
    """

    name: str
    batch_size: int
    rows: Callable[[], tuple[torch.Tensor, ...]]
    start: Callable[[], StepFunction]


class Rows(Dataset[Any]):
    """Rows of tensors in memory, over and over; a batch is cut out at once, as from a columnar file."""

    def __init__(self, tensors: tuple[torch.Tensor, ...], count: int) -> None:
        self._tensors = tensors
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[index % len(tensor)] for tensor in self._tensors)

    def __getitems__(self, indices: list[int]) -> list[tuple[torch.Tensor, ...]]:
        """A batch, whole."""
        places = torch.tensor(indices) % len(self._tensors[0])
        return [tuple(tensor[places] for tensor in self._tensors)]


def _whole(batches: list[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
    return batches[0]


@dataclass(frozen=True)
class Stretch:
    """Some steps of one arm."""

    seconds: float
    processor_s: float
    """Of the training process's main thread."""
    losses: list[float]


@dataclass(frozen=True)
class Outcome:
    """What an arm's run came to."""

    verdicts: list[events.CutChosen]
    workers: int

    @property
    def words(self) -> str:
        """The last verdict of each kind of step, in short."""
        last = {verdict.variant: verdict for verdict in self.verdicts}
        return "; ".join(f"{verdict.outcome}: {verdict.reason}" for verdict in last.values()) or "no verdict"


class Arm:
    """One program under one setting, in a process of its own."""

    def __init__(self, program: Program, steps: int, settings: dict[str, Any]) -> None:
        context = get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, program, steps, settings))
        self._process.start()
        theirs.close()

    def run(self, steps: int) -> Stretch:
        """The next steps of the run, alone on the machine as far as this benchmark goes."""
        return self._ask(steps)

    def outcome(self) -> Outcome:
        """What stoker said so far."""
        return self._ask("outcome")

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join()

    def _ask(self, what: Any) -> Any:
        self._pipe.send(what)
        try:
            found = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the process of an arm has ended; what it said is above") from None
        return found


@contextlib.contextmanager
def arms(program: Program, steps: int, settings: dict[str, dict[str, Any]]) -> Iterator[dict[str, Arm]]:
    """A process for each setting, with ``steps`` steps to run at most; all have made their first step."""
    found = {name: Arm(program, steps + 1, setting) for name, setting in settings.items()}
    try:
        for arm in found.values():
            arm.run(1)
        yield found
    finally:
        for arm in found.values():
            arm.close()


def _serve(pipe: Any, program: Program, steps: int, settings: dict[str, Any]) -> None:
    """The process: runs as many steps as it is told to, until it is told nothing more."""
    # As torchrun sets it for every rank; what trains and what loads then compete for whole cores.
    torch.set_num_threads(1)
    data = Rows(program.rows(), steps * program.batch_size)
    loader = DataLoader(data, program.batch_size, shuffle=True, num_workers=1, collate_fn=_whole)
    torch.manual_seed(1)
    step = program.start()
    with stoker(**settings) as served:
        batches = iter(served.iterate(loader))
        while (told := pipe.recv()) is not None:
            if told == "outcome":
                verdicts = [event for event in served.events if isinstance(event, events.CutChosen)]
                pipe.send(Outcome(verdicts, len(served.feed(loader).engine.crew.active())))
                continue
            begun, worked = time.perf_counter(), time.thread_time()
            losses = [step(next(batches)) for _ in range(told)]
            pipe.send(Stretch(time.perf_counter() - begun, time.thread_time() - worked, losses))
        batches._shutdown_workers()
