"""Which width becomes narrower next, from measured designs: greedy steps, least error for what is saved. Pure.

What measures asks :meth:`Narrowing.next_step` for a design, measures it whole, and answers by
:meth:`Narrowing.measured`, until there is none.

A step that looked good against an earlier design is measured again before it is taken, and only the most promising one
is: errors that rounding adds are nearly independent, so old measurements rank well (the lazy evaluation of Minoux,
"Accelerated Greedy Algorithms", 1978). Steps are ranked by error, which every sample tells something about, and not by
changed decisions, of which there are a few: the best of many candidates by a count of few is best by luck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Part = Literal["weights", "activations"]
LEAST: Mapping[Part, int] = {"weights": 2, "activations": 4}
"""Narrowest widths."""
_BIT = 4.0
"""Times that the squared error of rounding grows with one bit less."""


@dataclass(frozen=True, slots=True, order=True)
class Width:
    """A width that may be chosen.

    Attributes:
        layer: an operation's name.
        part: of its weights, or of its result.
    """

    layer: str
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A design and what measuring it whole gave.

    Attributes:
        bits: of each width that may be chosen.
        cost: of what is to be saved, any unit.
        error: of outputs against the model on real numbers, root mean square.
        loss: what must stay within a bound.
    """

    bits: Mapping[Width, int]
    cost: float
    error: float
    loss: float


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known of one bit less: squared error by cost saved, and by which design that was measured."""

    rate: float
    against: int = -1
    design: Measured | None = None


class Narrowing:
    """A search from one design to narrower ones.

    Args:
        start: the widest design.
        most: loss that no design may exceed.

    Attributes:
        path: designs that were taken, from the start on; each costs less than the one before it.
    """

    def __init__(self, start: Measured, most: float) -> None:
        self.path = [start]
        self._most = most
        self._steps = {width: _Step(-1.0) for width in start.bits}
        self._asked: Width | None = None

    @property
    def design(self) -> Measured:
        """The narrowest so far."""
        return self.path[-1]

    def next_step(self) -> Mapping[Width, int] | None:
        """Bits of the design to measure next; None: no width may become narrower."""
        bits = self.design.bits
        open_ = [width for width in self._steps if bits[width] > LEAST[width.part]]
        unseen = [width for width in open_ if self._steps[width].against < 0]
        self._asked = min(unseen or open_, key=self._order, default=None)
        return None if self._asked is None else {**bits, self._asked: bits[self._asked] - 1}

    def measured(self, found: Measured) -> None:
        """What the design that was asked for came to; takes it if nothing else promises more.

        Raises:
            ValueError: no design was asked for.
        """
        width, self._asked = self._asked, None
        if width is None:
            raise ValueError("`measured` must answer `next_step`, and no design was asked for")
        saved = self.design.cost - found.cost
        if saved <= 0 or not found.loss <= self._most:
            del self._steps[width]  # error only grows: what is too much now is too much later
        else:
            rate = (found.error**2 - self.design.error**2) / saved
            self._steps[width] = _Step(rate, len(self.path), found)
        self._take()

    def _take(self) -> None:
        """Takes the best step if its measurement is of the present design."""
        bits = self.design.bits
        open_ = [width for width in self._steps if bits[width] > LEAST[width.part]]
        best = min(open_, key=self._order, default=None)
        if best is None or any(self._steps[width].against < 0 for width in open_):
            return
        step = self._steps[best]
        if step.against == len(self.path) and step.design is not None:
            self.path.append(step.design)
            self._steps[best] = _Step(max(step.rate, 0.0) * _BIT, 0)

    def _order(self, width: Width) -> tuple[float, Width]:
        return self._steps[width].rate, width
