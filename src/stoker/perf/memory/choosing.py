"""Which blocks to recompute, so that a step fits in the least time: exact, by dynamic programming.

When the backward pass of a block runs, it needs what all blocks before it keep, its own tensors (kept or made again)
and a rest. So a choice is valid if for each block: bytes kept before it + its own + the rest stay within the budget.
States are the pairs of kept bytes and seconds that no other pair beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.memory.remedies import BlockSpan, kept_bytes
from stoker.perf.memory.timeline import live_bytes

_MOST_STATES = 2048
"""States beyond which kept bytes are rounded up to a grid as fine as this: blocks that are all alike stay below."""


@dataclass(frozen=True, slots=True)
class BlockCost:
    """What a block takes.

    Attributes:
        kept: bytes that it keeps for its backward pass if it is not recomputed.
        rest: most bytes that are alive in its backward pass besides what blocks keep.
        seconds: of recomputing it.
    """

    kept: int
    rest: int
    seconds: float


class _Chosen(NamedTuple):
    """Blocks that are recomputed: a linked list, so that states share their beginnings."""

    before: _Chosen | None
    place: int


class _State(NamedTuple):
    """A choice for the first blocks."""

    kept: int
    seconds: float
    chosen: _Chosen | None


def choose(blocks: Sequence[BlockCost], budget: int, *, rest: int = 0) -> frozenset[int] | None:
    """Places of the blocks to recompute, in the least time that the budget allows; None if no choice fits.

    Args:
        blocks: in the order of the forward pass.
        budget: bytes.
        rest: bytes besides what blocks keep, at the worst point between the passes of the last block.
    """
    grid = 1
    states = [_State(0, 0.0, None)]
    for place, block in enumerate(blocks):
        allowed = [state for state in states if state.kept + block.kept + block.rest <= budget]
        taken = [state._replace(seconds=state.seconds + block.seconds, chosen=_Chosen(state.chosen, place))
                 for state in allowed]  # fmt: skip
        kept = [state._replace(kept=_up(state.kept + block.kept, grid)) for state in allowed]
        states = _unbeaten([*kept, *taken])
        if len(states) > _MOST_STATES:
            grid = max(grid, -(-budget // _MOST_STATES))
            states = _unbeaten([state._replace(kept=_up(state.kept, grid)) for state in states])
    valid = [state for state in states if state.kept + rest <= budget]
    if not valid:
        return None
    chosen = min(valid, key=lambda state: (state.seconds, state.kept)).chosen
    found: set[int] = set()
    while chosen is not None:
        found.add(chosen.place)
        chosen = chosen.before
    return frozenset(found)


def _up(size: int, grid: int) -> int:
    return -(-size // grid) * grid


def _unbeaten(states: Sequence[_State]) -> list[_State]:
    """States that no other one beats in both kept bytes and seconds."""
    found: list[_State] = []
    for state in sorted(states, key=lambda state: state[:2]):
        if not found or state.seconds < found[-1].seconds:
            found.append(state)
    return found


def costs_of(timeline: MemoryTimeline, spans: Sequence[BlockSpan]) -> tuple[list[BlockCost], int]:
    """What each block takes, and the rest between the passes of the last one: what :func:`choose` takes.

    Args:
        timeline: with no block recomputed.
        spans: of its blocks, in the order of the forward pass, as :func:`~stoker.perf.memory.remedies.spans_of` gives.
    """
    live = live_bytes(timeline)
    kept = [kept_bytes(timeline, span) for span in spans]
    before = np.cumsum([0, *kept])
    blocks = [
        BlockCost(
            kept[place], int(live[span.backward[0] : span.backward[1]].max()) - int(before[place + 1]), span.seconds
        )
        for place, span in enumerate(spans)
    ]
    last = spans[-1]
    between = live[last.forward[1] : last.backward[0]]
    return blocks, int(between.max()) - int(before[-1]) if len(between) else 0
