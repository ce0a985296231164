"""What the feed reports about a loader, for recordings and for display."""

from __future__ import annotations

from typing import Protocol

from stoker.feed.purity.tiers import Choice
from stoker.feed.scaling import Decision
from stoker.feed.transport.board import Departure
from stoker.records.versus import Pair


class Listener(Protocol):
    """Receives the events of a loader."""

    def notice(self, text: str) -> None:
        """One line that a person should see."""
        ...

    def workers_changed(self, decision: Decision) -> None:
        """The policy asked for another number of workers or another depth."""
        ...

    def worker_lost(self, departure: Departure, released: int) -> None:
        """A worker is gone; ``released`` items are made again."""
        ...

    def sample_quarantined(self, index: object, path: str, seed: int, action: str) -> None:
        """A sample was left out or replaced."""
        ...

    def tick(self) -> None:
        """Called about four times a second while the loader is in use."""
        ...

    def snapshot(self) -> None:
        """Called when the counters are worth recording: at a landmark, a change of workers, the end."""
        ...


class LoaderListener(Listener, Protocol):
    """Receives the events of one loader, its tiers, iterations and comparisons with torch included."""

    def opened(self, choice: Choice) -> None:
        """The tier is settled (again, when the probe changed it)."""
        ...

    def iterating(self, ordinal: int, workers: int, start_s: float) -> None:
        """An iteration has begun."""
        ...

    def compared(self, pair: Pair) -> None:
        """A round of stoker and one of torch were timed."""
        ...

    def comparison_ended(self, reason: str, found: str) -> None:
        """No further pair will be timed.

        Args:
            reason: why not, as half a sentence; empty when all requested pairs are done.
            found: the result, for people.
        """
        ...
