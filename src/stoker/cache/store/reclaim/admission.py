"""Remembers rejected pages: others of their size or larger are rejected at once, before anything is computed.

A full cache in use rejects most pages, so rejecting must cost next to nothing. A remembered answer is valid until a
file is evicted, or until the policy would be asked again.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stoker.cache.policies import PageLife


class Shelf(NamedTuple):
    """What pages of one segment have in common."""

    group: int
    life: PageLife
    rule: int


class Refusal(NamedTuple):
    """The answer that nothing may be evicted.

    Attributes:
        until: when to ask again (monotonic seconds).
        changes: of the table; once their number differs, the answer is void.
    """

    until: float
    changes: int


class Refuser(Protocol):
    """What refuses room."""

    def refused(self, life: PageLife) -> Refusal:
        """The last refusal of room for pages of a life."""
        ...

    def stands(self, refusal: Refusal) -> bool:
        """Whether a refusal is still valid."""
        ...


class Refusals:
    """The last refusal of each shelf, in this process. Thread-safe: an update that is lost only means asking again.

    Args:
        room: what refuses.
    """

    def __init__(self, room: Refuser) -> None:
        self._room = room
        self._of: dict[Shelf, tuple[int, Refusal]] = {}

    def note(self, shelf: Shelf, length: int) -> None:
        """Remember that a page of ``length`` bytes was just refused."""
        if shelf.life is not PageLife.PINNED:  # for those, files that are in use are evicted too
            self._of[shelf] = (length, self._room.refused(shelf.life))

    def forget(self, shelf: Shelf) -> None:
        """Forget a refusal: there is room after all."""
        self._of.pop(shelf, None)

    def cover(self, shelf: Shelf, length: int) -> bool:
        """Whether a page of ``length`` bytes would be refused again."""
        known = self._of.get(shelf)
        if known is None or length < known[0]:
            return False
        if self._room.stands(known[1]):
            return True
        self._of.pop(shelf, None)
        return False
