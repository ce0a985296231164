"""What came of the arenas of this process, as a record."""

from __future__ import annotations

from collections import Counter

from stoker.records.arena import ArenaReport
from stoker.train.arena.running import known


def report() -> ArenaReport:
    """Plans of all compiled graphs of this process that are in use, their memory, and how often they ran in it."""
    graphs = known()
    ordinary: Counter[str] = Counter()
    for each in graphs:
        ordinary.update(each.ordinary)
    return ArenaReport(
        plans=[layout.record for each in graphs for layout in each.layouts()],
        arena_bytes=sum({id(each.arena): each.arena.nbytes for each in graphs if each.layouts()}.values()),
        planned_passes=sum(each.planned_passes for each in graphs),
        ordinary_passes=dict(ordinary.most_common()),
        left=[f"{each.name} left to aot_eager ({each.problem})" for each in graphs if each.problem],
    )
