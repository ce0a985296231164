"""Which rank an exchange that does not move waits for. Pure.

Ranks stand in a ring and hear from both neighbours by beats. A stopped one is silent: its neighbours name it first, and
the others hear of it before their own time is up. A rank that has not come to the exchange beats on: the one behind it
names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BEAT_SHARE, BEAT_MOST_S = 0.1, 1.0
"""A beat's period: a share of the time-out, and at most so long."""
_SILENT, _STALLED, _BEHIND = 0.4, 0.6, 0.8
"""Shares of the time-out: of a neighbour without beats, which a long call that holds Python's lock may cause as well;
of an exchange that does not move before a silent neighbour is named; and before one that has not come to it is. The
rest of the time-out is for the other ranks to hear of it."""


@dataclass(frozen=True, slots=True)
class RankFault:
    """Why no exchange works any more.

    Attributes:
        rank: that is at fault.
        why: what it did, as the rest of a sentence that begins with the rank.
    """

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class NeighbourFacts:
    """What is known about a rank next to this one.

    Attributes:
        rank: global number.
        heard_s: when its last beat came (s, any clock).
        at: number of the exchange that it was at; 0 while it does nothing.
        ended: how its connection has ended, as the rest of a sentence; empty while it is there.
    """

    rank: int
    heard_s: float
    at: int
    ended: str = ""


def beat_s(timeout_s: float) -> float:
    """Seconds between beats."""
    return min(BEAT_SHARE * timeout_s, BEAT_MOST_S)


def fault_of(
    now: float, moved_s: float, at: int, preceding: NeighbourFacts, following: NeighbourFacts, timeout_s: float
) -> RankFault | None:
    """The fault of an exchange that has not moved for too long; None while it may still.

    Args:
        now: the same clock as all times.
        moved_s: when it last moved.
        at: its number.
        preceding: the rank that sends to this one.
        following: the rank that this one sends to.
        timeout_s: of the process group.
    """
    stalled_s = now - moved_s
    if stalled_s < _STALLED * timeout_s:
        return None
    silent = _silent(now, (preceding, following), timeout_s)
    if silent is not None:
        return silent
    if stalled_s < _BEHIND * timeout_s:
        return None
    if preceding.at < at:
        return RankFault(preceding.rank, f"did not come to the exchange for {stalled_s:.1f} s")
    if stalled_s >= timeout_s:
        return RankFault(preceding.rank, f"sent nothing for {stalled_s:.1f} s")
    return None


def lost_of(now: float, preceding: NeighbourFacts, following: NeighbourFacts, timeout_s: float) -> RankFault | None:
    """The neighbour that explains the failure of a collective which others carry out; None if both are there.

    A connection that has ended explains it, and at a program's end it does not: so this is asked behind a failure only.
    Arguments as :func:`fault_of`.
    """
    for neighbour in (preceding, following):
        if neighbour.ended:
            return RankFault(neighbour.rank, neighbour.ended)
    return _silent(now, (preceding, following), timeout_s)


def _silent(now: float, neighbours: Sequence[NeighbourFacts], timeout_s: float) -> RankFault | None:
    for neighbour in neighbours:
        silent_s = now - neighbour.heard_s
        if silent_s > _SILENT * timeout_s:
            return RankFault(neighbour.rank, f"has not answered for {silent_s:.1f} s: it is stopped, or cut off")
    return None
