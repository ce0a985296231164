"""Amounts of CPUs to nodes: what is held stays where it is, a job's own nodes come first, then any that have room.

Pure and on columns. Amounts are whole CPUs.
"""

from __future__ import annotations

import numpy as np

from stoker.scale.cluster.state import HeldCpus, IntArray


def place(
    amounts: IntArray, held: HeldCpus, homes: HeldCpus, room: IntArray, order: IntArray, stationary: IntArray
) -> HeldCpus:
    """Grants that give each job its amount.

    Args:
        amounts: CPUs of each job.
        held: what is granted now.
        homes: a job's own nodes; CPUs are not looked at.
        room: CPUs of each node that may be granted.
        order: jobs, the first to choose first.
        stationary: jobs that can use their own nodes alone.

    Returns:
        Grants of at least 1 CPU, by job. A stationary job may get less than its amount where others' nodes are full;
        all others get theirs as long as there is room at all.
    """
    left = amounts.copy()
    free = room.copy()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    found: list[tuple[IntArray, IntArray, IntArray]] = []

    def book(job: IntArray, node: IntArray, wanted: IntArray) -> None:
        """Takes as much of each row as its job wants and its node has, rows in order."""
        allowed = _within(wanted, node, free)
        allowed = _within(allowed, job, left)
        np.subtract.at(free, node, allowed)
        np.subtract.at(left, job, allowed)
        found.append((job, node, allowed))

    if len(stationary):
        rows = np.flatnonzero(np.isin(homes.job, stationary))
        rows = rows[np.argsort(rank[homes.job[rows]], kind="stable")]
        book(homes.job[rows], homes.node[rows], left[homes.job[rows]])
        left[stationary] = 0
    if len(held.job):
        # Where a job holds more than it keeps, its own nodes' CPUs stay: they are near.
        away = ~_in_pairs(held, homes, len(room))
        rows = np.lexsort((away, rank[held.job]))
        # What a job gives up must not count against its node: it would push out others that keep theirs.
        kept = _within(held.cpus[rows], held.job[rows], left)
        book(held.job[rows], held.node[rows], kept)
    rows = np.argsort(rank[homes.job], kind="stable")
    rows = rows[left[homes.job[rows]] > 0]
    book(homes.job[rows], homes.node[rows], left[homes.job[rows]])
    found.append(_anywhere(left, free, order))
    return _joined(found, len(room))


def _within(wanted: IntArray, group: IntArray, limit: IntArray) -> IntArray:
    """As much of each row as the limit of its group allows, the first rows first."""
    by_group = np.argsort(group, kind="stable")
    rows, groups = wanted[by_group], group[by_group]
    ends = np.cumsum(rows)
    begins = np.searchsorted(groups, groups)
    before = ends - rows - (ends - rows)[begins] if len(rows) else rows
    allowed = np.empty_like(wanted)
    allowed[by_group] = np.minimum(np.maximum(limit[groups] - before, 0), rows)
    return allowed


def _in_pairs(held: HeldCpus, homes: HeldCpus, nodes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.isin(held.job * nodes + held.node, homes.job * nodes + homes.node)


def _anywhere(left: IntArray, free: IntArray, order: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """The rest of the jobs, in order, on the nodes with the most room: both are laid end to end and cut at all ends."""
    jobs = order[left[order] > 0]
    nodes = np.argsort(-free, kind="stable")
    nodes = nodes[free[nodes] > 0]
    job_ends, node_ends = np.cumsum(left[jobs]), np.cumsum(free[nodes])
    total = min(int(job_ends[-1]) if len(jobs) else 0, int(node_ends[-1]) if len(nodes) else 0)
    ends = np.unique(np.concatenate([job_ends, node_ends]))
    ends = ends[ends < total]
    ends = np.append(ends, total) if total else ends[:0]
    cpus = np.diff(ends, prepend=0)
    return jobs[np.searchsorted(job_ends, ends)], nodes[np.searchsorted(node_ends, ends)], cpus


def _joined(found: list[tuple[IntArray, IntArray, IntArray]], nodes: int) -> HeldCpus:
    """One row for each pair of job and node with a CPU."""
    job, node, cpus = (np.concatenate(columns) for columns in zip(*found, strict=True))
    pairs, place_of = np.unique(job * nodes + node, return_inverse=True)
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, place_of, cpus)
    kept = sums > 0
    return HeldCpus(pairs[kept] // nodes, pairs[kept] % nodes, sums[kept])
