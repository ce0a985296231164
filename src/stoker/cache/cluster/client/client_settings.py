"""How a client joins a cluster, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.cache.settings import ClusterSettings
from stoker.wire.secrets import DEFAULT_IDENTITY


class ClientSettings(ClusterSettings, frozen=True, kw_only=True):
    """How a client joins a cluster; can be pickled and holds no secret.

    Attributes:
        join: as ``--join`` takes it.
        identity: name of the secret to use.
        state_dir: where the last ring is kept.
        attempts: most workers to try for one part.
        store_per_s: store requests a second that all clients together may make while workers are lost.
        isolated_per_s: the same of this client while it knows no live worker.
        wait_s: longest that one read waits for that budget.
        mapped: whether pages of workers of this machine and user are read from their files.
    """

    join: str = ""
    identity: str = DEFAULT_IDENTITY
    state_dir: Path | None = None
    attempts: int = 2
    store_per_s: float = 2000.0
    isolated_per_s: float = 100.0
    wait_s: float = 0.5
    mapped: bool = True

    def __post_init__(self) -> None:
        """Checks each value."""
        super().__post_init__()
        if not 1 <= self.attempts <= 8:
            raise ValueError(f"`attempts` must be 1 to 8, got {self.attempts}")


@dataclass(slots=True)
class ClientCounts:
    """Counters of a client, for display; approximate where threads race.

    Attributes:
        ranges: requested.
        served: of them, sent by workers.
        mapped: of them, read from a worker's mapped files on this machine.
        missed: not sent by workers.
        lost: for which no worker was available.
        found_lost: how often a worker did not answer.
        waited_s: for the store's budget.
    """

    ranges: int = 0
    served: int = 0
    mapped: int = 0
    missed: int = 0
    lost: int = 0
    found_lost: int = 0
    waited_s: float = 0.0
