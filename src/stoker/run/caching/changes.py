"""Reports objects that change during a run: once a path, a few times a run.

The processes of a run, data workers included, coordinate by files next to its ledger, which are removed with it.
Through such files they also report clients that bypass the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from stoker.core.saying import say

MOST_TOLD = 5
"""Paths of a run that are named; all are counted in its report."""


class Teller:
    """Reports changed objects on stderr, for one process.

    Args:
        ledger: of the run.
        quiet: print nothing.
    """

    def __init__(self, ledger: Path, *, quiet: bool) -> None:
        self._ledger, self._quiet = ledger, quiet
        self._known: set[str] = set()

    def tell(self, url: str) -> None:
        """Handles a changed object: prints a line, unless a process of the run already did."""
        if self._quiet or url in self._known or len(self._known) > MOST_TOLD:
            return
        self._known.add(url)
        before = len(_marks(self._ledger, "changed"))
        if before > MOST_TOLD or not self._claim(url):
            return
        line = f"{url} changed at its source during the run; what is read from now on is the new version"
        if before == MOST_TOLD:
            line = "more objects changed at their source during the run; they are counted in its report"
        say(f"cache: {line}")

    def tell_around(self, what: str) -> None:
        """Notes a client that bypasses the cache; the run's report names it.

        Args:
            what: its name.
        """
        with contextlib.suppress(OSError):  # the run has ended, or the disk is full
            Path(f"{self._ledger}.around-{what.replace('/', ' ')}").touch(mode=0o600)

    def _claim(self, url: str) -> bool:
        """Whether this process is the first to report it."""
        name = hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        try:
            os.close(os.open(f"{self._ledger}.changed-{name}", os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError:
            return False  # another process was first; or the run has ended, or the disk is full
        return True


def around(ledger: Path) -> list[str]:
    """Clients of a run's processes that bypass the cache."""
    return [mark.name.removeprefix(f"{ledger.name}.around-") for mark in _marks(ledger, "around")]


def forget(ledger: Path) -> None:
    """Removes the files at the run's end."""
    for mark in [*_marks(ledger, "changed"), *_marks(ledger, "around")]:
        with contextlib.suppress(OSError):
            mark.unlink()


def _marks(ledger: Path, kind: str) -> list[Path]:
    return list(ledger.parent.glob(f"{ledger.name}.{kind}-*"))
