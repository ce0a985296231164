"""Options of `stoker profile` for the processes of a program; part of the run's settings."""

from __future__ import annotations

from typing import Literal

from stoker.core.errors import ConfigError
from stoker.core.settings import Handed

LEAST_STEPS = 4
"""One to settle, one to sample, one to settle again, one to measure."""


class ProfileOptions(Handed, frozen=True, kw_only=True):
    """How much is measured.

    Raises:
        ConfigError: at construction, for a value that breaks its rule.
    """

    steps: int = 50
    """Steps that are measured after warming up, sampled ones included."""
    warmup: int = 5
    """Steps to skip first: compilation, caches, the start of data workers."""
    samples: int = 3
    """Steps that torch's profiler samples."""
    then: Literal["stop", "continue"] = "stop"
    """Whether the program is ended after that, or continues."""
    served: bool = False
    """Whether stoker serves the program's loaders meanwhile, rather than torch."""

    def __post_init__(self) -> None:
        """Checks each value."""
        for name, least in (("steps", LEAST_STEPS), ("warmup", 0), ("samples", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"`--{name}` must be at least {least}, got {getattr(self, name)}")

    @property
    def sampled(self) -> int:
        """Steps that are sampled: as many as asked for, as far as others are left to measure."""
        return min(self.samples, max(1, (self.steps - 2) // 2))
