"""The settings for the number of data workers."""

from __future__ import annotations

from typing import Annotated

from stoker.core.errors import ConfigError
from stoker.core.settings import Settings, count, number

_CORES = "a number of cores of at least 0.1, or `auto`"
_CPU = "CPU cores that all data workers together may keep busy"


class ScaleSettings(Settings, frozen=True, kw_only=True):
    """How many data workers there are; None means that stoker finds the value itself."""

    workers: Annotated[
        int | None,
        count("auto|N", "data workers of each elastic loader; auto finds the number, 0: in the program", least=0),
    ] = None
    max_workers: Annotated[int | None, count("N", "most data workers of a loader (default: 64)", least=1)] = None
    cpu_budget: Annotated[float | None, number("CORES", _CPU, _CORES, least=0.1)] = None
    """None takes what the host grants."""

    def __post_init__(self) -> None:
        """Checks each value, then the values together."""
        super().__post_init__()
        if self.workers is not None and self.max_workers is not None and self.workers > self.max_workers:
            raise ConfigError(
                f"`workers` must be at most `max-workers`, got {self.workers} and {self.max_workers}; "
                "lower the one or raise the other",
                key="workers",
                together=("workers", "max_workers"),
            )
