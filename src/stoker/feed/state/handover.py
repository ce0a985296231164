"""How workers that began on a candidate for the elastic tier continue in the pinned tier, with nothing made twice.

A worker may continue if it has made exactly what a pinned one with its id would have made, and has drawn no random
number: the seeds of the two tiers differ. If one may not, or is lost meanwhile, the iteration restarts with new pinned
workers.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.feed.state.ledger import Item, Items, Ledger, State


class Handover:
    """Collects the workers' answers whether they can continue as pinned ones."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        self._agreed: set[int] = set()
        self._failed = False

    def begin(self, ledger: Ledger, declared: int, items: Items, most_open: int = 0) -> list[int]:
        """Pins the items and returns the workers to ask: all if each has its place and only items of it, else none.

        Args:
            ledger: the workers.
            declared: number of places.
            items: those of the iteration, which are bound to the places.
            most_open: as in :class:`Items`.
        """
        places = {worker.number: worker.worker_id for worker in ledger.active()}
        if sorted(places.values()) != list(range(declared)) or not _as_pinned(items, places, declared):
            return []
        items.pin(declared, most_open)
        self._asked.update(places)
        return list(places)

    def answered(self, worker: int, *, agreed: bool) -> None:
        """Records whether a worker can continue as a pinned one."""
        self._agreed.add(worker)
        self._failed = self._failed or not agreed

    def lost(self, worker: int) -> None:
        """Records that a worker is gone."""
        self._failed = self._failed or worker in self._asked

    @property
    def result(self) -> bool | None:
        """Whether the same workers continue; None while that is unknown."""
        if not self._asked or self._failed:
            return False
        return True if self._asked <= self._agreed else None


def _as_pinned(items: Iterable[Item], places: dict[int, int], declared: int) -> bool:
    """Whether every item given to a worker belongs to its place."""
    given = [item for item in items if item.state in (State.LEASED, State.READY)]
    return all(places.get(item.maker) == item.seq % declared for item in given)
