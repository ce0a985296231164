"""What the launcher passes to a run's processes about the data cache."""

from __future__ import annotations

import os

from stoker.cache.settings import CacheSettings
from stoker.core.settings import Handed
from stoker.run.environment import CACHE_ENV


class CacheRun(Handed, frozen=True, kw_only=True):
    """The cache in a run; travels as JSON."""

    cache: CacheSettings
    """Settled, with rules that pin the run to the versions that it reads first."""
    ledger: str
    """File in which the run's processes count what they read."""
    pid: int
    """Process that `stoker run` became."""
    quiet: bool
    """Print errors only."""


def current_run() -> CacheRun | None:
    """The launcher's settings, or None outside `stoker run --cache`.

    Raises:
        ConfigError: another version of stoker wrote it.
    """
    text = os.environ.get(CACHE_ENV)
    return CacheRun.from_json(text) if text else None
