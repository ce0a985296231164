"""Ranks that are averaged: many in one process, in lockstep, or a process each over gloo; with an emulated clock.

Both drive the same policy and the same averages. On the clock a step takes a second, and an exchange as many as it has
bytes for: as a ring does, in proportion.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks.programs.averaged_digits import DigitsCase, DigitsTraining
from stoker.records.events import ModelAveraged
from stoker.train.averaging.averager import ModelAverager
from stoker.train.averaging.group_means import GroupMeans
from stoker.train.averaging.looks import MeansSeen
from stoker.train.averaging.policy import AveragingRules
from stoker.train.averaging.replica import AveragedReplica, GatherFigures, RoundSteps, TakeMean

EXCHANGE = 8.0
"""Seconds of DDP's exchange of gradients, for one of computation."""


@dataclass
class EmulatedClock:
    """Seconds of a rank, which pass when it is said."""

    gradient_bytes: int
    now_s: float = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s

    def sent(self, num_bytes: float) -> None:
        """An exchange."""
        self.now_s += EXCHANGE * num_bytes / self.gradient_bytes


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    accuracy: float
    seconds: float
    """Emulated."""
    weights: NDArray[np.float64]
    """Of rank 0, as it would save them."""
    rounds: list[ModelAveraged] = field(default_factory=list)


def gradient_bytes(model: torch.nn.Module) -> int:
    """What DDP exchanges in a step."""
    return sum(each.numel() * each.element_size() for each in model.parameters())


def simulate(case: DigitsCase, rules: AveragingRules) -> Outcome:
    """All ranks in this process, averaged."""
    torch.set_num_threads(1)
    ranks = [DigitsTraining(case, rank) for rank in range(case.ranks)]
    clock = EmulatedClock(gradient_bytes(ranks[0].model))
    rounds: list[ModelAveraged] = []
    records: list[Callable[[ModelAveraged], None]] = [rounds.append, *[_nothing] * (case.ranks - 1)]
    replicas = [
        AveragedReplica(each.model, [each.optimizer], ranks=case.ranks, rules=rules, clock=clock, on_round=record)
        for each, record in zip(ranks, records, strict=True)
    ]
    for each, replica in zip(ranks, replicas, strict=True):
        MeansSeen(each.model, [each.optimizer], replica)
    for step in range(1, case.steps + 1):
        for each in ranks:
            each.backward()
            each.optimizer.step()
        clock.now_s += 1.0
        asked = [replica.stepped() for replica in replicas]
        if asked[0] is not None:
            lockstep([each for each in asked if each is not None], clock)
        ranks[0].evaluate(step)
    return Outcome(ranks[0].accuracy, clock.now_s, _saved(ranks[0]), rounds)


def simulate_ddp(case: DigitsCase) -> Outcome:
    """All ranks in this process, with the mean of their gradients in each step.

    Running statistics are averaged where they are read: DDP would keep those of rank 0, which has not seen the others'
    labels where shards are sorted.
    """
    torch.set_num_threads(1)
    ranks = [DigitsTraining(case, rank) for rank in range(case.ranks)]
    clock = EmulatedClock(gradient_bytes(ranks[0].model))
    every = case.steps // case.looks
    for step in range(1, case.steps + 1):
        for each in ranks:
            each.backward()
        for gradients in zip(*[[p.grad for p in each.model.parameters()] for each in ranks], strict=True):
            mean_in_place([gradient for gradient in gradients if gradient is not None])
        for each in ranks:
            each.optimizer.step()
        clock.now_s += 1.0
        clock.sent(clock.gradient_bytes)
        if step % every == 0:
            for buffers in zip(*[each.model.buffers() for each in ranks], strict=True):
                if buffers[0].is_floating_point():
                    mean_in_place(buffers)
            ranks[0].evaluate(step)
    return Outcome(ranks[0].accuracy, clock.now_s, _saved(ranks[0]))


def lockstep(asked: Sequence[RoundSteps], clock: EmulatedClock) -> None:
    """Answers an average of all ranks, one question after the other."""
    answer: Any = None
    while True:
        questions: list[GatherFigures | TakeMean] = []
        for each in asked:
            try:
                questions.append(each.send(answer))
            except StopIteration:
                continue
        if not questions:
            return
        first = questions[0]
        if isinstance(first, GatherFigures):
            answer = [each.figures for each in questions if isinstance(each, GatherFigures)]
            continue
        answer = None
        means = [each.tensors for each in questions if isinstance(each, TakeMean)]
        for tensors in zip(*means, strict=True):
            mean_in_place(tensors)
        clock.sent(_bytes(first))


@torch.no_grad()
def mean_in_place(tensors: Sequence[Tensor]) -> None:
    """The mean, in each of the tensors; summed in the order of ranks, as two ranks of gloo do."""
    mean = reduce(torch.add, tensors[1:], tensors[0]).mul_(1.0 / len(tensors)) if len(tensors) > 1 else tensors[0]
    for tensor in tensors:
        tensor.copy_(mean)


def _saved(rank: DigitsTraining) -> NDArray[np.float64]:
    return torch.cat([value.flatten().double() for value in rank.model.state_dict().values()]).numpy()


def _bytes(asked: TakeMean) -> int:
    return sum(each.numel() * each.element_size() for each in asked.tensors)


def _nothing(_: ModelAveraged) -> None:
    pass


# Real ranks.


class _ClockedMeans(GroupMeans):
    """Means of a process group that take emulated time."""

    clock: EmulatedClock

    def carry_out(self, steps: RoundSteps, step: int) -> None:
        """Likewise."""
        super().carry_out(self._clocked(steps), step)

    def _clocked(self, steps: RoundSteps) -> RoundSteps:
        answer: Any = None
        while True:
            try:
                asked = steps.send(answer)
            except StopIteration:
                return
            answer = yield asked
            if isinstance(asked, TakeMean):
                self.clock.sent(_bytes(asked))


def train_rank(case: DigitsCase, rank: int, rules: AveragingRules, found: bool) -> Outcome:
    """One real rank, in DDP, in a process group that is there.

    Args:
        case: the training.
        rank: this one.
        rules: of the averages.
        found: whether the optimizer is found as it steps, as for an unmodified program.
    """
    torch.set_num_threads(1)
    own = DigitsTraining(case, rank)
    ddp = own.module = DistributedDataParallel(own.model)
    clock = EmulatedClock(gradient_bytes(own.model))
    means = _ClockedMeans()
    means.clock = clock
    averager = ModelAverager(ddp, [] if found else [own.optimizer], means=means, rules=rules, clock=clock)
    for step in range(1, case.steps + 1):
        own.backward()
        clock.now_s += 1.0
        own.optimizer.step()
        if rank == 0:
            own.evaluate(step)
    saved = _saved(own)
    averager.close()
    return Outcome(own.accuracy, clock.now_s, saved, list(averager.rounds))


def real_ranks(case: DigitsCase, rules: AveragingRules) -> Outcome:
    """A process each, over gloo; what rank 0 came to."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        ends = [context.Pipe(duplex=False) for _ in range(case.ranks)]
        running = [
            context.Process(target=_rank, args=(case, rank, rules, meeting, ends[rank][1]))
            for rank in range(case.ranks)
        ]
        for process in running:
            process.start()
        for _, writer in ends:
            writer.close()
        outcome: Outcome = ends[0][0].recv()
        for process in running:
            process.join()
    return outcome


def _rank(case: DigitsCase, rank: int, rules: AveragingRules, meeting: str, writer: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=case.ranks)
    outcome = train_rank(case, rank, rules, found=True)
    if rank == 0:
        writer.send(outcome)
    dist.barrier()
    dist.destroy_process_group()
