"""What a step takes in one planned piece of memory, and what the allocator reserves for it."""

from __future__ import annotations

from stoker.core.errors import MissingExtraError
from stoker.core.placement.offsets import place_buffers
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.memory.certificate import certify
from stoker.perf.memory.reserve import Reserve
from stoker.records.memory import ArenaSizes

_MOST_PLACED = 20_000
"""Buffers up to which a plan takes seconds."""


def lives_of(timeline: MemoryTimeline) -> list[tuple[int, int, int]]:
    """Bytes, birth and death of what is alive in the traced step; what outlives it fills its place to the end."""
    first = max(0, timeline.begin - 1)
    return [
        (each.bytes, max(0, each.birth - first), max(each.death, each.birth + 1) - first)
        for each in timeline.buffers
        if each.death > first
    ]


def arena_sizes(timeline: MemoryTimeline, default: Reserve, expandable: Reserve) -> ArenaSizes | None:
    """The live bound and a plan of the step, next to what two settings of the allocator reserve; pure.

    The bound is proven to be missed by every plan, or the plan to be the smallest, where a solver is installed and ends
    in time.

    Args:
        timeline: of the step.
        default: what the allocator reserves by default.
        expandable: what it reserves with expandable segments.

    Returns:
        The sizes; None if there are too many buffers to place.
    """
    lives = lives_of(timeline)
    if not lives or len(lives) > _MOST_PLACED:
        return None
    placed = place_buffers(lives)
    bound = placed.bound
    try:
        found = certify(lives, placed)
        placed, bound = found.placement, found.bound
    except MissingExtraError:
        pass  # shown as not certified
    return ArenaSizes(
        bound_bytes=bound, plan_bytes=placed.size, default_bytes=default.reserved, expandable_bytes=expandable.reserved
    )
