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
