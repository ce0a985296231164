"""Filling the cache beforehand: the work, its pieces, and a summary of the results. Reads nothing.

What acts is in ``preloading``. Only the cache itself records the progress of an interrupted warming: objects cached in
the store's current version are not fetched again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stoker.cache.names import PAGE_BYTES, pages_of
from stoker.cache.reading.request_planning import MAX_REQUEST_PAGES

MOST_FAILURES_KEPT = 100
"""Most failures whose texts are kept; all are counted."""

Outcome = Literal["present", "fetched", "refused", "failed", "uncached"]
"""How an object ended: it was there, was brought, found no room, could not be read, or no rule lets it be kept."""


class WarmObject(NamedTuple):
    """An object to warm.

    Attributes:
        path: as its filesystem strips it.
        size: bytes, as the listing says.
    """

    path: str
    size: int


class PageRun(NamedTuple):
    """Neighbouring pages of one object, brought by one request.

    Attributes:
        item: number of the object.
        pages: of it; empty for an object without bytes.
    """

    item: int
    pages: range


def pieces_of(items: Iterable[WarmObject], most_pages: int = MAX_REQUEST_PAGES) -> Iterator[PageRun]:
    """The work in the order of the listing, large objects in pieces, so that several jobs share one."""
    for number, item in enumerate(items):
        pages = pages_of(0, item.size)
        for start in range(0, max(1, len(pages)), most_pages):
            yield PageRun(number, pages[start : start + most_pages])


def num_pieces(size: int, most_pages: int = MAX_REQUEST_PAGES) -> int:
    """Pieces of an object of so many bytes."""
    return max(1, -(-len(pages_of(0, size)) // most_pages))


def share_out(work: Iterator[PageRun], do: Callable[[PageRun], None], jobs: int, stop: threading.Event) -> None:
    """Does pieces in order, several at a time; after an interruption finishes those in flight and raises it again.

    Args:
        work: the pieces.
        do: does one; what it raises ends all.
        jobs: at a time.
        stop: once set, nothing more is begun; an interruption sets it.
    """
    take = threading.Lock()

    def run() -> None:
        while not stop.is_set():
            with take:
                piece = next(work, None)
            if piece is None:
                return
            do(piece)

    with ThreadPoolExecutor(jobs, thread_name_prefix="stoker-warm") as threads:
        try:
            for future in [threads.submit(run) for _ in range(jobs)]:
                future.result()
        except BaseException:
            stop.set()
            raise


def page_bytes(pages: range, size: int) -> int:
    """Bytes of neighbouring pages of an object."""
    return max(0, min(size, pages.stop * PAGE_BYTES) - pages.start * PAGE_BYTES)


@dataclass(slots=True)
class Tally:
    """Objects and their bytes."""

    objects: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        """One more object."""
        self.objects += 1
        self.num_bytes += num_bytes


@dataclass(slots=True)
class Account:
    """The planned objects, and the outcome of each; at the end the outcomes add up to the plan.

    Attributes:
        planned: objects.
        present: were cached before, in the store's version.
        fetched: are cached now.
        refused: were read, but the cache had no room for all of their pages.
        uncached: the rule for their path excludes them, or they have no version.
        failed: could not be read.
        evicted: of those present or fetched, no longer whole when all was done.
        failures: path and reason of the first failed ones.
        is_listed: whether all that was asked for is planned.
    """

    planned: Tally = field(default_factory=Tally)
    present: Tally = field(default_factory=Tally)
    fetched: Tally = field(default_factory=Tally)
    refused: Tally = field(default_factory=Tally)
    uncached: Tally = field(default_factory=Tally)
    failed: Tally = field(default_factory=Tally)
    evicted: Tally = field(default_factory=Tally)
    failures: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    is_listed: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def plan(self, items: Iterable[WarmObject]) -> None:
        """Adds planned objects."""
        for item in items:
            self.planned.add(item.size)

    def end(self, item: WarmObject, outcome: Outcome, reason: str = "") -> None:
        """Takes in how an object ended. From any thread.

        Args:
            item: the object.
            outcome: its end.
            reason: of a failure.
        """
        with self._lock:
            tally: Tally = getattr(self, outcome)
            tally.add(item.size)
            if outcome == "failed" and len(self.failures) < MOST_FAILURES_KEPT:
                self.failures.append((item.path, reason))

    @property
    def unfinished(self) -> int:
        """Objects not reached, because the warming was interrupted."""
        ended = (self.present, self.fetched, self.refused, self.uncached, self.failed)
        return self.planned.objects - sum(tally.objects for tally in ended)

    @property
    def is_complete(self) -> bool:
        """Whether every requested object is cached."""
        there = self.present.objects + self.fetched.objects - self.evicted.objects
        return self.is_listed and there == self.planned.objects


def manifest_urls(lines: Iterable[str]) -> list[str]:
    """URLs of a manifest: one a line, with blank lines and comments after ``#`` at the begin of a line."""
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if line and not line.startswith("#")]


def has_magic(url: str) -> bool:
    """Whether a URL is a pattern."""
    return any(letter in url for letter in "*?[")
