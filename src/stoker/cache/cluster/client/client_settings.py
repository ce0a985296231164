"""How a client joins a cluster, and what it has seen of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.cache.settings import ClusterSettings
from stoker.wire.secrets import DEFAULT_IDENTITY


class ClientSettings(ClusterSettings, frozen=True, kw_only=True):
    """How a client joins a cluster: what people choose, and the rest; can be pickled, holds no secret.

    Attributes:
        join: as ``--join`` takes it.
        identity: name of the secret to use.
        state_dir: where the last ring is kept.
        attempts: different workers that are asked for one part.
        store_per_s: store requests a second that all clients together may make while workers are lost.
        isolated_per_s: of this client while it knows of no other.
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
    """What a client has seen, for people; approximate where threads race.

    Attributes:
        ranges: asked for.
        served: of them, that workers sent.
        mapped: of them, that were read from a worker's own files on this machine.
        missed: that workers would not send.
        lost: for which no worker could be asked.
        found_lost: how often a worker turned out not to answer.
        waited_s: for the store's budget.
    """

    ranges: int = 0
    served: int = 0
    mapped: int = 0
    missed: int = 0
    lost: int = 0
    found_lost: int = 0
    waited_s: float = 0.0
