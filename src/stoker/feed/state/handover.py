"""How the workers that began on a candidate for the elastic tier go on as pinned ones, with nothing made twice.

A worker may go on if it has made just what a pinned one with its id would have made, and has drawn no random number:
the seeds of the two tiers differ. One that may not, or that is lost meanwhile, has the iteration start its pinned
workers anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from stoker.feed.state.ledger import Item, Items, Ledger, State


class Handover:
    """The answers of the workers of one iteration."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        self._agreed: set[int] = set()
        self._failed = False

    def begin(self, ledger: Ledger, declared: int, items: Items, most_open: int = 0) -> list[int]:
        """The workers to be asked: all, if each holds a place of its own and has only items of that place.

        Args:
            ledger: the workers.
            declared: how many places there are.
            items: are bound to the places.
            most_open: as in :class:`Items`.
        """
        places = {worker.number: worker.worker_id for worker in ledger.active()}
        if sorted(places.values()) != list(range(declared)) or not _as_pinned(items, places, declared):
            return []
        items.pin(declared, most_open)
        self._asked.update(places)
        return list(places)

    def answered(self, worker: int, *, agreed: bool) -> None:
        """A worker says whether it goes on as a pinned one."""
        self._agreed.add(worker)
        self._failed = self._failed or not agreed

    def lost(self, worker: int) -> None:
        """A worker is gone."""
        self._failed = self._failed or worker in self._asked

    @property
    def result(self) -> bool | None:
        """Whether the same workers go on; None while that is not known."""
        if not self._asked or self._failed:
            return False
        return True if self._asked <= self._agreed else None


def _as_pinned(items: Iterable[Item], places: dict[int, int], declared: int) -> bool:
    """Whether every item that was given to a worker is one of its place."""
    given = [item for item in items if item.state in (State.LEASED, State.READY)]
    return all(places.get(item.maker) == item.seq % declared for item in given)
