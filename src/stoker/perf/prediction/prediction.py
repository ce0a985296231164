"""A predicted step: its time, its parts, and how far to believe it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stoker.records.parts import PREDICTED

Tier = Literal["calibrated", "extrapolated", "refused"]
"""How sure a prediction is: number and interval come from measurements of such steps; from specifications alone, wider
and ranked below equal calibrated ones; not made, since a part of it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One optimizer step.

    Attributes:
        seconds: most likely; NaN if refused.
        low, high: ends of the interval.
        share: of such predictions whose measurement lies in the interval.
        parts: seconds by name, of :data:`~stoker.records.parts.PREDICTED`; they sum to ``seconds``.
        hidden_s: of communication that overlaps with computation; not part of ``seconds``.
        reasons: for the tier, and its parts without validation, as sentences.
    """

    seconds: float
    low: float
    high: float
    tier: Tier
    parts: Mapping[str, float]
    share: float = 0.9
    hidden_s: float = 0.0
    reasons: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        unknown = [name for name in self.parts if name not in PREDICTED]
        if unknown:
            raise ValueError(f"`parts` must be among {', '.join(PREDICTED)}, got {unknown[0]!r}")


def refused(*reasons: str) -> Prediction:
    """No prediction, and why."""
    nan = float("nan")
    return Prediction(seconds=nan, low=nan, high=nan, tier="refused", parts={}, reasons=reasons)
