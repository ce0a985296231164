"""How fast clients may read the store directly when workers are lost; pure, with time as an argument.

Without a coordinator: each client takes its share of the cluster's budget by the number of live clients that workers
report, and a small fixed share while no worker has reported one. An exhausted budget never fails a read: the read waits
a little and then proceeds, since a stalled training job is worse than a busy store.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenBucket:
    """Tokens that come in at a steady rate, kept up to ``burst``.

    Attributes:
        rate_per_s: tokens a second; 0 for none.
        burst: most tokens kept.
        tokens: at hand when it was last asked; below zero while takers wait for theirs.
    """

    rate_per_s: float
    burst: float
    tokens: float = 0.0
    _at: float | None = None

    def _refill(self, now: float) -> None:
        # A clock that was set back adds no tokens.
        passed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self.tokens = min(self.burst, self.tokens + passed_s * self.rate_per_s)
        self._at = now

    def take(self, count: float, now: float) -> bool:
        """Takes ``count`` tokens if they are available."""
        self._refill(now)
        if self.tokens < count:
            return False
        self.tokens -= count
        return True

    def wait_s(self, count: float, now: float) -> float:
        """Seconds until ``count`` tokens are available (infinity for never)."""
        self._refill(now)
        missing = count - self.tokens
        if missing <= 0.0:
            return 0.0
        return missing / self.rate_per_s if self.rate_per_s > 0.0 else float("inf")


@dataclass(slots=True)
class StoreBudget:
    """This client's share of the requests that a cluster without its workers may send to the store.

    Attributes:
        cluster_per_s: requests a second for all clients together.
        isolated_per_s: for this client while it does not know how many there are.
        deadline_s: longest wait of one read.
        random: source of the jitter.
    """

    cluster_per_s: float = 2000.0
    isolated_per_s: float = 100.0
    deadline_s: float = 0.5
    random: random.Random = field(default_factory=random.Random)
    _bucket: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        if self.cluster_per_s <= 0.0 or self.isolated_per_s <= 0.0 or self.deadline_s < 0.0:
            raise ValueError(
                "`cluster_per_s` and `isolated_per_s` must be above 0 and `deadline_s` at least 0, "
                f"got {self.cluster_per_s}, {self.isolated_per_s}, {self.deadline_s}"
            )
        self._bucket = TokenBucket(self.isolated_per_s, self.isolated_per_s, self.isolated_per_s)

    def share(self, num_clients: int | None) -> None:
        """Sets the number of live clients that workers report; None if no worker has reported lately."""
        rate = self.isolated_per_s if num_clients is None else self.cluster_per_s / max(1, num_clients)
        self._bucket.rate_per_s = self._bucket.burst = rate

    def spend(self, requests: int, now: float) -> float:
        """Takes ``requests`` and says how long to wait before sending them (seconds, at most ``deadline_s``)."""
        wait_s = self._bucket.wait_s(requests, now)
        # Always taken: later requests wait for tokens spent in advance, at most those of one deadline.
        floor = -self._bucket.rate_per_s * self.deadline_s
        self._bucket.tokens = max(floor, self._bucket.tokens - requests)
        if wait_s == 0.0:
            return 0.0
        return min(self.deadline_s, wait_s * self.random.uniform(1.0, 1.5))
