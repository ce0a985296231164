"""What people choose for a live cluster as a whole, while it runs: the objective, users' quotas, weights and classes.

Pure values; the allocator keeps them and applies them to its ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

from stoker.scale.cluster.ledger import LedgerConfig

_V = TypeVar("_V")
LiveObjective = Literal["jct", "throughput", "fair"]
LIVE_OBJECTIVES: tuple[LiveObjective, ...] = ("jct", "throughput", "fair")
"""Those that are for people; the others are there to compare with."""


@dataclass(frozen=True, kw_only=True)
class ClusterControls:
    """The choices that were made; where none was, the allocator's own hold.

    Raises:
        ValueError: a value breaks its rule.
    """

    objective: LiveObjective | None = None
    grace_s: float | None = None
    """Time to finish the items at work on CPUs that are taken back."""
    floor_frac: float | None = None
    """Part of its node's own share that a job keeps whatever others would gain."""
    quotas: Mapping[str, int] = field(default_factory=dict[str, int])
    """CPUs by user: theirs first, lent while they do not use them. Without any, all is common."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """By user; what a job gains counts so many times."""
    priorities: Mapping[str, int] = field(default_factory=dict[str, int])
    """Classes by user, added to those of their jobs: a higher one goes first whatever the objective says."""

    def __post_init__(self) -> None:
        if self.objective is not None and self.objective not in LIVE_OBJECTIVES:
            raise ValueError(f"`objective` must be one of {', '.join(LIVE_OBJECTIVES)}, got {self.objective!r}")
        if self.grace_s is not None and not 0.0 < self.grace_s < math.inf:
            raise ValueError(f"`grace_s` must be positive, got {self.grace_s}")
        if self.floor_frac is not None and not 0.0 <= self.floor_frac <= 1.0:
            raise ValueError(f"`floor_frac` must be from 0 to 1, got {self.floor_frac}")
        for user, cpus in self.quotas.items():
            if cpus < 0:
                raise ValueError(f"`quotas` must not be negative, got {cpus} for `{user}`")
        for user, weight in self.weights.items():
            if not 0.0 < weight < math.inf:
                raise ValueError(f"`weights` must be positive, got {weight} for `{user}`")

    def applied(self, config: LedgerConfig) -> LedgerConfig:
        """A ledger's configuration with these choices."""
        division = config.division
        if self.objective is not None:
            division = replace(division, objective=self.objective)
        if self.floor_frac is not None:
            division = replace(division, floor_frac=self.floor_frac)
        return replace(
            config, division=division, grace_s=config.grace_s if self.grace_s is None else self.grace_s,
            quotas=self.quotas or config.quotas, weights=self.weights or config.weights,
            priorities=self.priorities or config.priorities,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ControlChange:
    """What is to become of the choices; what it does not name stays."""

    objective: LiveObjective | None = None
    grace_s: float | None = None
    floor_frac: float | None = None
    quotas: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """By user; None takes the user's away, as in the next two."""
    weights: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    priorities: Mapping[str, int | None] = field(default_factory=dict[str, int | None])

    @property
    def is_empty(self) -> bool:
        """Whether it names nothing."""
        return not any(getattr(self, each.name) not in (None, {}) for each in fields(self))

    def of(self, controls: ClusterControls) -> ClusterControls:
        """The choices after it. Raises ``ValueError`` where a value breaks its rule."""
        return ClusterControls(
            objective=controls.objective if self.objective is None else self.objective,
            grace_s=controls.grace_s if self.grace_s is None else self.grace_s,
            floor_frac=controls.floor_frac if self.floor_frac is None else self.floor_frac,
            quotas=_merged(controls.quotas, self.quotas),
            weights=_merged(controls.weights, self.weights),
            priorities=_merged(controls.priorities, self.priorities),
        )


def _merged(had: Mapping[str, _V], named: Mapping[str, _V | None]) -> dict[str, _V]:
    return {user: value for user, value in {**had, **named}.items() if value is not None}
