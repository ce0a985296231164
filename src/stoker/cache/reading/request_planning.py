"""Which requests fetch missing pages: adjacent pages together, large enough to pay, and enough to run in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.cache.names import PAGE_BYTES

PARALLEL = 8
"""Requests of one read in flight at a time."""
MAX_REQUEST_PAGES = 8
"""Pages of the largest request; this times :data:`PARALLEL` bounds what is in flight (64 MiB)."""


def runs_of(indexes: Iterable[int]) -> list[range]:
    """Groups adjacent pages.

    Args:
        indexes: of pages, ascending.
    """
    runs: list[range] = []
    for index in indexes:
        if runs and runs[-1].stop == index:
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def requests_for(missing: Sequence[int], parallel: int = PARALLEL) -> list[range]:
    """Requests for missing pages, none of more than :data:`MAX_REQUEST_PAGES`, each page in exactly one.

    Args:
        missing: indexes of pages, ascending.
        parallel: requests to aim at; fewer are larger.
    """
    pages = max(1, min(MAX_REQUEST_PAGES, -(-len(missing) // parallel)))
    return [
        range(start, min(start + pages, run.stop))
        for run in runs_of(missing)
        for start in range(run.start, run.stop, pages)
    ]


def bytes_of(run: range, size: int) -> tuple[int, int]:
    """First byte of a run of pages, and the byte after its last.

    Args:
        run: neighbouring pages.
        size: of the object (bytes).
    """
    return run.start * PAGE_BYTES, min(size, run.stop * PAGE_BYTES)
