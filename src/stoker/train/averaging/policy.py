"""When ranks that train apart take the mean of their weights: a state machine without torch, clock or network.

It is driven after every step of the optimizer and after every average. All that it decides on is equal on all ranks,
so that all ranks decide alike and none waits for a mean that the others do not take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

Form = Literal["mean", "bmuf", "islands"]
Scope = Literal["none", "island", "all"]
_FEW = 32
"""An average before an evaluation comes at most once in so many steps: programs that read the state at each step, as
for an average of weights over time, would otherwise be averaged for that."""
FORMS: Sequence[Form] = ("mean", "bmuf", "islands")


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingRules:
    """How the period between averages is chosen.

    Agreement is ``|mean change|^2 / mean |change|^2`` of the ranks since the last average: 1 where all ranks changed
    alike, 1/P where the changes of P ranks are unrelated, less where they undo each other. Bounds are in units of 1/P.
    Unrelated changes are gradient noise, which a mean removes; changes that undo each other come from shards that want
    different models, and a longer period makes them worse.

    Raises:
        ValueError: a value is out of its range.
    """

    form: Form = "mean"
    """``mean``; ``bmuf``, which filters the mean where agreement is high; ``islands``, more often inside of hosts."""
    fixed_period: int = 0
    """Steps between averages after the warm-up, whatever the ranks find; 0 to choose by agreement."""
    warm_up_steps: int = 16
    """Steps at the start that are all averaged: weights change fastest there."""
    low: float = 0.45
    """Relative agreement below which the period is halved."""
    high: float = 1.6
    """Relative agreement above which the period is doubled."""
    max_period: int = 16
    """Most steps between averages; beyond it little time is saved, and agreement no longer warns."""
    growth_frac: float = 0.125
    """Longest period as a share of the steps so far: at first all ranks learn the same, whatever their shards hold, and
    agree more than they will."""
    exchange_frac: float = 0.1
    """Share of the computation that the exchange may take; no period is longer than this needs."""
    rounds: int = 3
    """Averages of a period before it may change."""
    smoothing: float = 0.5
    """Weight of what was seen before in the running means of agreement and times."""
    settling_steps: int = 5
    """Steps before an expected evaluation or checkpoint that are all averaged, at most one in 32."""
    block_momentum: float = 0.5
    """``bmuf``: the share of the last filtered change that is added to the next."""
    filter_from: float = 2.0
    """``bmuf``: relative agreement from which the mean is filtered."""
    island_rounds: int = 4
    """``islands``: averages inside of islands for one of all ranks."""

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"`form` must be one of {', '.join(FORMS)}, got {self.form!r}")
        least = {
            "fixed_period": 0,
            "warm_up_steps": 0,
            "max_period": 1,
            "rounds": 1,
            "settling_steps": 0,
            "island_rounds": 1,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"`{name}` must be at least {bound}, got {getattr(self, name)}")
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"`{each.name}` must be a finite number of at least 0, got {value}")
        if self.low >= self.high:
            raise ValueError(f"`low` must be below `high` ({self.high:g}), got {self.low:g}")
        if self.exchange_frac == 0:
            raise ValueError("`exchange_frac` must be above 0, got 0; no period is long enough for that")
        for name in ("smoothing", "block_momentum"):
            if getattr(self, name) >= 1:
                raise ValueError(f"`{name}` must be below 1, got {getattr(self, name):g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """What the ranks found in one average; equal on all of them."""

    agreement: float | None
    """Between 0 and 1; None where no weight changed."""
    compute_s: float
    """Seconds of a step of the slowest rank, without exchanges."""
    exchange_s: float
    """Seconds of the average."""
    looked_at: int
    """Step after which a rank was last evaluated or saved; 0 for never."""


class AveragingPolicy:
    """The period of one model.

    Args:
        ranks: that train apart; islands, where these are averaged inside.
        rules: the constants.

    Source: the agreement of ranks as in adaptive local SGD; BMUF by Chen and Huo (2016). We differ in the bounds, which
    are relative to unrelated changes, and in averaging each step shortly before the model is looked at.
    """

    def __init__(self, ranks: int, rules: AveragingRules | None = None) -> None:
        if ranks < 1:
            raise ValueError(f"`ranks` must be at least 1, got {ranks}")
        self.ranks = ranks
        self.rules = rules or AveragingRules()
        self.steps = 0
        """Steps of the optimizer so far."""
        self.since = 0
        """Those since the last average."""
        self.period = self.rules.fixed_period if self.rules.warm_up_steps == 0 and self.rules.fixed_period else 1
        self.agreement: float | None = None
        """Running mean of the relative agreement; None before the first, and after a change of the period."""
        self.ratio: float | None = None
        """Running mean of exchange over computation of a step."""
        self._seen = 0
        self._looked_at = 0
        self._interval = 0

    @property
    def reason(self) -> str:
        """Why this step is averaged, in words."""
        if self.steps <= self.rules.warm_up_steps:
            return "warm-up"
        return "before an evaluation or a checkpoint" if self._settles else "period"

    @property
    def filters(self) -> bool:
        """Whether the next mean is filtered by block momentum."""
        known = self.agreement is not None and self.agreement >= self.rules.filter_from
        return self.rules.form == "bmuf" and known and self.steps > self.rules.warm_up_steps

    @property
    def bound(self) -> int:
        """The longest period: the least power of 2 that leaves the exchange its share, within the other bounds."""
        if self.ratio is None:
            return 1
        rules = self.rules
        wanted = max(1.0, min(self.ratio / rules.exchange_frac, float(rules.max_period)))
        young = 1 << max(1, int(self.steps * rules.growth_frac)).bit_length() - 1
        return min(rules.max_period, young, 1 << math.ceil(math.log2(wanted) - 1e-9))

    def step(self) -> Scope:
        """What is to be averaged after a step of the optimizer: nothing, inside of islands, or all ranks."""
        self.steps += 1
        self.since += 1
        if self.ranks == 1 and self.rules.form != "islands":
            return "none"
        if self.steps <= self.rules.warm_up_steps or self.since >= self.period or self._settles:
            return "all"
        inside = max(1, self.period // self.rules.island_rounds)
        return "island" if self.rules.form == "islands" and self.since % inside == 0 else "none"

    def averaged(self, facts: RoundFacts) -> None:
        """Begins the next period after an average of all ranks."""
        whole = self.since >= self.period
        self.since = 0
        self._look(facts.looked_at)
        if facts.compute_s > 0:
            self.ratio = self._mean(self.ratio, facts.exchange_s / facts.compute_s)
        if self.steps <= self.rules.warm_up_steps:
            return
        # An average that came before its time tells nothing about its period.
        if whole and facts.agreement is not None:
            self.agreement = self._mean(self.agreement, facts.agreement * self.ranks)
            self._seen += 1
        self._choose()

    def _choose(self) -> None:
        rules, period = self.rules, self.period
        if rules.fixed_period:
            self.period = rules.fixed_period
            return
        if self.agreement is not None and self._seen >= rules.rounds:
            if self.agreement < rules.low:
                period = max(1, period // 2)
            elif self.agreement > rules.high:
                period *= 2
        period = min(period, self.bound)
        if period != self.period:
            self.period, self.agreement, self._seen = period, None, 0

    def _mean(self, before: float | None, now: float) -> float:
        return now if before is None else self.rules.smoothing * before + (1 - self.rules.smoothing) * now

    @property
    def _settles(self) -> bool:
        """Whether an evaluation or a checkpoint is expected after one of the next steps."""
        left = self._looked_at + self._interval - self.steps
        return 0 <= left < min(self.rules.settling_steps, self._interval // _FEW)

    def _look(self, step: int) -> None:
        """Programs evaluate and save at even distances; an evaluation and its checkpoint are one."""
        if step > self._looked_at + 2 * self.rules.settling_steps:
            self._looked_at, self._interval = step, step - self._looked_at
