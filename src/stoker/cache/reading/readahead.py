"""How far to read ahead of a file's reader: decided from its positions, without reading.

For a sequential reader, the window is as long as the run of pages it has read; a random access closes it. So a single
access costs one page, a reader that stops early fetches at most twice what it read, and a file that is read to its end
is fetched once, in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIRST_PAGES = 2
MAX_PAGES = 64
"""Bounds what is in flight for one file (64 MiB), and what is wasted when a reader stops early."""
TOTAL_PAGES = 128
"""Bounds what all files of a process have ahead of their readers (128 MiB): it is in memory where the cache is full."""


class ReadaheadState(NamedTuple):
    """State of a reader.

    Attributes:
        page: the last that it read; -1 before the first.
        run: pages that it read in sequence.
        ahead: pages to keep ahead of it.
        asked: pages before this one are already requested.
    """

    page: int = -1
    run: int = 0
    ahead: int = 0
    asked: int = 0

    def read(self, first: int, last: int) -> ReadaheadState:
        """The window after a read.

        Args:
            first: page of the read.
            last: page of the read; not less than ``first``.
        """
        if first == self.page == last:
            return self
        if first not in (self.page, self.page + 1):
            return ReadaheadState(last, last - first + 1)
        run = self.run + last - self.page
        if self.page < 0:
            return ReadaheadState(last, run, 0, last + 1)
        ahead = min(MAX_PAGES, max(FIRST_PAGES, run))
        return ReadaheadState(last, run, ahead, max(self.asked, last + 1))

    def wanted(self, size_pages: int, most: int = MAX_PAGES) -> range:
        """Pages to ask for now.

        Args:
            size_pages: of the file.
            most: that may be ahead, for what other files have.
        """
        ahead = min(self.ahead, most)
        end = min(size_pages, self.page + 1 + ahead)
        start = max(self.asked, self.page + 1)
        # In halves, so that a window that moves by one page does not cause requests of one page each.
        if end - start < ahead // 2 and end < size_pages:
            return range(start, start)
        return range(start, max(start, end))

    def having_asked(self, pages: range) -> ReadaheadState:
        """The window after these pages were requested."""
        if pages.stop <= self.asked:
            return self
        return ReadaheadState(self.page, self.run, self.ahead, pages.stop)


def share(own: int, others: Sequence[int]) -> int:
    """Pages that a file may have ahead of its reader, so that all files of the process have at most TOTAL_PAGES.

    Args:
        own: pages that it has.
        others: that other files have.
    """
    files = 1 + sum(map(bool, others))
    return max(own, min(max(FIRST_PAGES, TOTAL_PAGES // files), TOTAL_PAGES - sum(others)))
