"""One rank of a distributed step: its own times, and how fast it would do further work."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.perf.communication.methods import RankSpeed
from stoker.perf.communication.times import PassTimes
from stoker.perf.prediction.prediction import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A rank that computes alone.

    Attributes:
        times: of one micro-batch, and of the optimizer.
        speed: of products and of its memory.
        below, above: ends of the interval of its times, relative to them.
        tier: how far they are backed by measurements; ``refused`` if there are no times, and then nothing else counts.
        reasons: for the tier.
        share: of measurements that lie in the interval.
    """

    times: PassTimes
    speed: RankSpeed
    below: float = 1.0
    above: float = 1.0
    tier: Tier
    reasons: tuple[str, ...] = ()
    share: float = 0.9


NO_TIMES = PassTimes(forward_s=(), backward_s=(), optimizer_s=0.0)


def without(reasons: tuple[str, ...]) -> Rank:
    """No prediction."""
    return Rank(times=NO_TIMES, speed=RankSpeed(lambda m, n, k: 0.0, 0.0), tier="refused", reasons=reasons)
