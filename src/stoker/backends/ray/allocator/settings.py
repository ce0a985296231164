"""What the first who starts the allocator chooses for all; imports no Ray."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.backends.ray.allocator.launch import PROGRAM_EXIT_S
from stoker.scale.cluster import GangConfig, LedgerConfig
from stoker.scale.cluster.submissions import PATIENCE_S


@dataclass(frozen=True, kw_only=True)
class AllocatorConfig:
    """What the first who starts the allocator chooses for all."""

    gangs: GangConfig = field(default_factory=lambda: GangConfig(patience_s=PATIENCE_S))
    ledger: LedgerConfig = field(default_factory=LedgerConfig)
    exit_s: float = PROGRAM_EXIT_S
    """Time between SIGTERM and SIGKILL of a job that is preempted or cancelled."""
