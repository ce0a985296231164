"""One rank's part of model averaging, with whatever carries values between ranks.

An average is a generator: it yields what it needs of all ranks and is sent the answer. So the same code runs over a
process group and, for many ranks in one process, in a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.errors import AveragingError
from stoker.records.events import ModelAveraged
from stoker.train.averaging.contents import AveragedContents, FlatCopy
from stoker.train.averaging.policy import AveragingPolicy, AveragingRules, RoundFacts, Scope


@dataclass(frozen=True, slots=True)
class GatherFigures:
    """Answered by the figures of all ranks, in the order of ranks."""

    figures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TakeMean:
    """Answered by None, after the mean of all ranks stands in each tensor, the same bits on all of them."""

    tensors: Sequence[Tensor]
    scope: Scope = "all"


RoundSteps = Generator[GatherFigures | TakeMean, Any, None]


class AveragedReplica:
    """A model that is trained apart from its copies on other ranks.

    Args:
        module: the model; its weights must equal those of the other ranks.
        optimizers: that train it, in the order in which they step.
        ranks: how many copies there are.
        islands: groups of ranks in which they are also averaged; 1 for none.
        rules: of the policy.
        clock: seconds, as they pass for the computation and the exchange.
        on_round: called with the record of each average of all ranks.
        name: of the model, in records.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        ranks: int,
        rules: AveragingRules,
        clock: Callable[[], float],
        on_round: Callable[[ModelAveraged], None],
        islands: int = 1,
        name: str = "",
    ) -> None:
        self.contents = AveragedContents(module, optimizers)
        # Changes of ranks that were averaged inside their islands are those of islands.
        self.policy = AveragingPolicy(islands if rules.form == "islands" else ranks, rules)
        self.ranks = ranks
        self.looked_at = 0
        """Step after which this rank was last evaluated or saved."""
        self.apart = False
        """Whether the weights have changed since the last mean."""
        self.states_are_means = False
        """Whether the optimizers' state was averaged with the weights."""
        self._name = name or type(module).__name__
        self._clock = clock
        self._on_round = on_round
        self._begun_s = self._start_s = clock()
        self._inside_s = 0.0
        self._filter: list[Tensor] = []

    def look(self) -> None:
        """Notes that the model is evaluated or saved now."""
        self.looked_at = self.policy.steps

    def stepped(self) -> RoundSteps | None:
        """What is to be averaged after a step of the optimizer, or None."""
        self.apart = True
        scope = self.policy.step()
        if scope == "none":
            return None
        return self.round() if scope == "all" else self.inside()

    def inside(self) -> RoundSteps:
        """Averages inside of the islands. The copies stay as the last mean of all ranks."""
        begun_s = self._clock()
        self.contents.find()
        for copy in (self.contents.weights, self.contents.buffers, self.contents.states):
            ours = FlatCopy(copy.tensors)
            yield TakeMean(ours.flat, "island")
            ours.give()
        self._inside_s += self._clock() - begun_s

    def round(self) -> RoundSteps:
        """Averages all ranks.

        Raises:
            AveragingError: the ranks train different weights.
        """
        contents, policy = self.contents, self.policy
        before_s = self._clock()
        compute_s = max(0.0, before_s - self._begun_s - self._inside_s) / max(1, policy.since)
        contents.find()
        figures = (float(contents.weights_layout), float(contents.layout), compute_s, float(self.looked_at))
        found: list[Sequence[float]] = yield GatherFigures(figures)
        _refuse_different([each[0] for each in found], self._name, policy.steps)
        same = len({each[1] for each in found}) == 1
        begun_s = self._clock()  # the slowest rank has arrived
        own = contents.weights.squared_distance()
        started = contents.weights.views if policy.rules.form != "bmuf" else [v.clone() for v in contents.weights.views]
        contents.weights.take()
        yield TakeMean(contents.weights.flat)
        left = contents.weights.squared_distance()
        # State that ranks hold of different weights, such as experts that some did not use, has no mean.
        sent = contents.bytes if same else contents.weights.bytes
        if same:
            for copy in (contents.buffers, contents.states):
                copy.take()
                if copy.flat:
                    yield TakeMean(copy.flat)
        else:
            contents.buffers.take()
            contents.states.take()
        took_s = self._clock() - begun_s + self._inside_s
        ends: list[Sequence[float]] = yield GatherFigures((own, left, took_s))
        agreement = _agreement(ends)
        reason, since = policy.reason, policy.since
        if policy.rules.form == "bmuf":
            self._filter_mean(started, policy.filters)
        facts = RoundFacts(
            agreement=agreement,
            compute_s=max(each[2] for each in found),
            # The last to arrive waits for none, and sees the exchange alone.
            exchange_s=min(each[2] for each in ends),
            looked_at=int(max(each[3] for each in found)),
        )
        policy.averaged(facts)
        contents.weights.give()
        contents.buffers.give()
        contents.states.give()
        self.apart, self.states_are_means = False, same
        self._inside_s, self._begun_s = 0.0, self._clock()
        self._on_round(
            ModelAveraged(
                t_s=self._begun_s - self._start_s,
                model=self._name,
                ranks=self.ranks,
                step=policy.steps,
                steps_since=since,
                period=policy.period,
                agreement=facts.agreement,
                compute_s=facts.compute_s,
                exchange_s=facts.exchange_s,
                bytes=sent,
                reason=reason,
            )
        )

    @torch.no_grad()
    def _filter_mean(self, before: Sequence[Tensor], filters: bool) -> None:
        """Adds a share of the last change of the mean to this one (block momentum)."""
        views = self.contents.weights.views
        if not filters or len(self._filter) != len(views):
            self._filter = [view - old for view, old in zip(views, before, strict=True)]
            return
        for kept, view, old in zip(self._filter, views, before, strict=True):
            kept.mul_(self.policy.rules.block_momentum).add_(view - old)
            view.copy_(old).add_(kept)


def _agreement(ends: Sequence[Sequence[float]]) -> float | None:
    """From squared changes of ranks and squared distances from their mean; their sums differ by the mean's change."""
    changes, distances = sum(each[0] for each in ends), sum(each[1] for each in ends)
    return min(1.0, max(0.0, 1.0 - distances / changes)) if changes > 0 else None


def _refuse_different(layouts: Sequence[float], name: str, step: int) -> None:
    other = next((rank for rank, each in enumerate(layouts) if each != layouts[0]), None)
    if other is not None:
        raise AveragingError(
            f"`{name}` must train the same weights on all ranks to be averaged, and rank {other} trains others than "
            f"rank 0 at step {step}; freeze and thaw weights on all ranks at the same step",
            rank=other,
            step=step,
        )
