"""What the launcher of a program's ranks tells each of them: its number of training workers, and where limits come."""

from __future__ import annotations

from stoker.core.settings import Handed


class RankSizes(Handed, frozen=True, kw_only=True):
    """The sizes that ranks were started with."""

    workers: int
    """Training workers."""
    reason: str
    changes: int = 0
    """How often their number has changed."""
    limit: str
    """A file with the most data workers of each of them, once there is such a limit; replaced as a whole."""
