"""How a layer stands with its method: rows that were agreed on, and doubts that send it back to the all-reduce. Pure.

All ranks read all headers, and so keep the same standing without asking each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from stoker.records.exchange import LayerCounts, LayerMethod
from stoker.train.exchanging.payload import Doubt, Header

_PENALTY = 2
"""What a step with a doubt counts against one without: a layer that is doubted every second step leaves."""
_PATIENCE = 12
_ROWS_IN_GROUPS_OF = 8


class LayerStanding:
    """One layer's, step by step.

    Args:
        room: rows that each rank may send at first.
        most_rows: to which the room may grow, for their memory.
    """

    def __init__(self, room: int, most_rows: int) -> None:
        self.room, self.most_rows = room, max(room, most_rows)
        self.steps = 0
        """Steps in which the layer went its planned way."""
        self.doubts: Counter[str] = Counter()
        """Steps in which it did not, by reason."""
        self.left = ""
        """Why it left its method for good; empty while it has it."""
        self._score = 0

    def read(self, headers: Sequence[Header]) -> bool:
        """Takes one step's headers of all ranks; returns whether the layer goes its planned way in this step."""
        doubt = max((header.doubt for header in headers), default=Doubt.NONE)
        if not doubt:
            self.steps += 1
            self._score = max(0, self._score - 1)
            return True
        self.doubts[doubt.words] += 1
        if doubt is Doubt.ROWS:
            self._grow(max(header.rows for header in headers))
        self._score += _PENALTY
        if self._score >= _PATIENCE and not self.left:
            self.left = doubt.words
        return False

    def _grow(self, rows: int) -> None:
        wanted = -(-rows // _ROWS_IN_GROUPS_OF) * _ROWS_IN_GROUPS_OF
        if wanted > self.most_rows:
            self.left = self.left or "more rows than its memory allows"
        else:
            self.room = max(self.room, wanted)


class Counted(Protocol):
    """Sums of one layer by a method that is not exact."""

    steps: int
    doubts: Counter[str]


def counts_of(
    standings: Mapping[str, LayerStanding], methods: Mapping[str, LayerMethod],
    sums: Mapping[str, Mapping[str, Counted]],
) -> list[LayerCounts]:  # fmt: skip
    """How often each layer went its planned way, for the record.

    Args:
        standings: of gathered layers.
        methods: of the plan, by weight.
        sums: of layers with another method, by its name.
    """
    found = [
        LayerCounts(
            weight=name, method=methods[name].method, steps=each.steps, doubts=dict(each.doubts), left=each.left
        )
        for name, each in standings.items()
    ]
    return found + [
        LayerCounts(weight=name, method=method, steps=each.steps, doubts=dict(each.doubts), left="")
        for method, of_layers in sums.items()
        for name, each in of_layers.items()
    ]
