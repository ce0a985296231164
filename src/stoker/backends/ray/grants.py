"""Which CPUs a job takes when nobody allocates them: pure.

What an allocator answers has the same form: CPUs by node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class FreeNode:
    """A node that may serve the job."""

    node_id: str
    free_cpus: int
    """That nobody has; the job's own not counted."""
    is_here: bool = False
    """It is the machine of the training process, whose own workers use these processors already."""


WAIT_S = 300.0
"""A machine that is rented comes within minutes; one that has not come by then does not come."""
PAUSE_S = 600.0
"""After it the need is shown again."""
_MOST_WAITED = 64


class Waiting:
    """For how many CPUs that no node has a job waits; so long as it does, who rents machines sees the need."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def count(self, unmet: int, now_s: float) -> int:
        """CPUs to wait for now.

        Args:
            unmet: CPUs that would help and that the nodes together do not have.
            now_s: the time.
        """
        if unmet <= 0:
            self._since_s = None
            return 0
        if self._since_s is None or now_s - self._since_s >= WAIT_S + PAUSE_S:
            self._since_s = now_s
        return min(unmet, _MOST_WAITED) if now_s - self._since_s < WAIT_S else 0


def grants_alone(wanted: int, nodes: Sequence[FreeNode], held: Mapping[str, int]) -> dict[str, int]:
    """CPUs by node that a job takes for itself.

    It keeps what it has and fills its nodes up; then it takes one node more, since each has to load the program. What
    is too much goes back from the node that has least of it.

    Args:
        wanted: CPUs, one for each worker.
        nodes: that are alive and can serve.
        held: CPUs by node that it has.
    """
    free = {node.node_id: node.free_cpus for node in nodes}
    grants = {node: cpus for node, cpus in held.items() if node in free and cpus > 0}
    excess = sum(grants.values()) - wanted
    for node in sorted(grants, key=lambda node: (grants[node], node)):
        if excess > 0:
            back = min(excess, grants[node])
            grants[node], excess = grants[node] - back, excess - back
    missing = wanted - sum(grants.values())
    own = [node for node in nodes if grants.get(node.node_id)]
    others = [node for node in nodes if not grants.get(node.node_id) and node.free_cpus > 0]
    others.sort(key=lambda node: (node.is_here, -node.free_cpus, node.node_id))
    for node in [*own, *others[:1]]:
        more = max(0, min(missing, node.free_cpus))
        grants[node.node_id] = grants.get(node.node_id, 0) + more
        missing -= more
    return {node: cpus for node, cpus in grants.items() if cpus}
