"""The time of an exchange, its interval, and what these are based on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "probe", "fitted", "specification"]
"""Where a time comes from: a sweep of such collectives; a probe of the link itself; published steps that exchanged over
such a link; a data sheet and stated constants. The last has the widest interval."""
_BASES: tuple[Basis, ...] = ("measured", "probe", "fitted", "specification")


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Seconds on a link.

    Attributes:
        seconds: most likely.
        low, high: ends of the interval.
        note: how it was found, as a sentence without its full stop; may be empty.
    """

    seconds: float
    low: float
    high: float
    basis: Basis = "measured"
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.seconds <= self.high:
            raise ValueError(
                f"`low`, `seconds` and `high` must ascend from 0, got {self.low}, {self.seconds}, {self.high}"
            )

    def times(self, factor: float) -> ExchangeCost:
        """The same exchange ``factor`` times, which may be a fraction."""
        return ExchangeCost(self.seconds * factor, self.low * factor, self.high * factor, self.basis, self.note)


NOTHING = ExchangeCost(0.0, 0.0, 0.0)
"""No exchange."""


def after(costs: Iterable[ExchangeCost]) -> ExchangeCost:
    """Exchanges one after another, on the least certain basis among them."""
    found = [cost for cost in costs if cost.seconds > 0]
    if not found:
        return NOTHING
    notes = "; ".join(dict.fromkeys(cost.note for cost in found if cost.note))
    basis = _BASES[max(_BASES.index(cost.basis) for cost in found)]
    low, high = sum(cost.low for cost in found), sum(cost.high for cost in found)
    return ExchangeCost(sum(cost.seconds for cost in found), low, high, basis, notes)
