"""One planned piece of memory for what a compiled step computes."""

from __future__ import annotations

from stoker.train.arena.eager.calling import use_planned_allocator
from stoker.train.arena.reporting import report
from stoker.train.arena.sharing import share

__all__ = ["report", "share", "use_planned_allocator"]
