"""What waits where in a dataflow design, counted in words and without time: how deep FIFOs must be, by closed form.

A node makes so many words of so many (``produced``), and takes in so many before some of its own have left
(``accepted``). Along paths these functions are composed; both are exact for whole samples in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.rtl.geometry import Windows

Counts = NDArray[np.int64]


class Flow(Protocol):
    """How a node passes words on."""

    def produced(self, taken: Sequence[Counts]) -> Counts:
        """Words that can have left when so many of each input have been taken."""
        ...

    def accepted(self, left: Counts) -> list[Counts]:
        """Words of each input that can have been taken when so many have left."""
        ...

    def consumed(self, left: Counts) -> list[Counts]:
        """Words of each input that must have been taken for so many to leave."""
        ...


@dataclass(frozen=True, slots=True)
class RowFlow:
    """A unit with a line buffer: rows are handed over whole.

    Attributes:
        windows: that it looks at.
        words_in: of a row of the image.
        words_out: of a row of windows.
        rows: of the line buffer.
        depth: words of the output FIFO.
    """

    windows: Windows
    words_in: int
    words_out: int
    rows: int
    depth: int

    def produced(self, taken: Sequence[Counts]) -> Counts:
        """Rows of windows whose rows are there."""
        images, within = np.divmod(taken[0], self.windows.size[0] * self.words_in)
        needs = np.array(self.windows.needs()) * self.words_in
        rows = images * self.windows.out[0] + np.searchsorted(needs, within, side="right")
        return rows * self.words_out

    def accepted(self, left: Counts) -> list[Counts]:
        """Rows that are done with, and those that the buffer holds."""
        images, row = np.divmod((left + self.depth) // self.words_out, self.windows.out[0])
        freed = images * self.windows.size[0] + np.array([0, *self.windows.freed()])[row]
        return [(freed + self.rows) * self.words_in]

    def consumed(self, left: Counts) -> list[Counts]:
        """Rows that the windows that have left look at."""
        images, row = np.divmod(-(-left // self.words_out), self.windows.out[0])
        needs = np.array([0, *self.windows.needs()])[row]
        return [(images * self.windows.size[0] + needs) * self.words_in]


@dataclass(frozen=True, slots=True)
class ThroughFlow:
    """A word out for a word of each input; ``depth`` words can be inside."""

    inputs: int
    depth: int

    def produced(self, taken: Sequence[Counts]) -> Counts:
        """As many as the input with the fewest."""
        return np.minimum.reduce(list(taken))

    def accepted(self, left: Counts) -> list[Counts]:
        """All that have left, and those inside."""
        return [left + self.depth] * self.inputs

    def consumed(self, left: Counts) -> list[Counts]:
        """As many of each."""
        return [left] * self.inputs


@dataclass(frozen=True, slots=True)
class ResizedFlow:
    """The same numbers in words of another number of lanes."""

    lanes_in: int
    lanes_out: int

    def produced(self, taken: Sequence[Counts]) -> Counts:
        """Whole words."""
        return taken[0] * self.lanes_in // self.lanes_out

    def accepted(self, left: Counts) -> list[Counts]:
        """One word is held: of those that are made, or of those that are taken apart."""
        if self.lanes_in < self.lanes_out:
            return [(left + 1) * (self.lanes_out // self.lanes_in)]
        return [left // (self.lanes_in // self.lanes_out) + 1]

    def consumed(self, left: Counts) -> list[Counts]:
        """Words that hold the numbers."""
        return [-(-left * self.lanes_out // self.lanes_in)]


@dataclass(frozen=True, slots=True)
class JoinedFlow:
    """Words of two inputs in turn, ``first`` of one and ``second`` of the other."""

    first: int
    second: int

    def produced(self, taken: Sequence[Counts]) -> Counts:
        """Whole turns, and what there is of the next."""
        turns = np.minimum(taken[0] // self.first, taken[1] // self.second)
        begun = np.minimum(taken[0] - turns * self.first, self.first)
        rest = np.minimum(taken[1] - turns * self.second, self.second)
        return turns * (self.first + self.second) + begun + np.where(begun == self.first, rest, 0)

    def accepted(self, left: Counts) -> list[Counts]:
        """Nothing is held."""
        return self.consumed(left)

    def consumed(self, left: Counts) -> list[Counts]:
        """In each turn, the first words are those of the one."""
        turns, word = np.divmod(left, self.first + self.second)
        return [
            turns * self.first + np.minimum(word, self.first),
            turns * self.second + np.maximum(word - self.first, 0),
        ]
