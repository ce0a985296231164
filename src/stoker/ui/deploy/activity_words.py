"""Sentences and rows about changes of bits in a design, the same on a terminal and on a page."""

from __future__ import annotations

from stoker.records.deploy.hardware import DesignActivity

ACTIVITY_HEAD = ("result", "unit", "changes a sample", "share")


def write_activity(found: DesignActivity) -> str:
    """What was counted."""
    return f"Changes of bits, over {found.samples:,} samples: an index to compare by, not power"


def write_uncounted(command: str) -> str:
    """What counts changes where none were counted.

    Args:
        command: that does.
    """
    return f"an index of what changes in this design, not power, is counted by `{command}`"


def activity_rows(found: DesignActivity) -> list[list[str]]:
    """Cells under :data:`ACTIVITY_HEAD`: of each unit, of what lies around them, of all."""
    rows = [
        [each.layer or each.unit or "around", each.kind or "streams, counters, registers", f"{each.changes:,.0f}",
         f"{100 * each.share_frac:.1f} %"]
        for each in found.units
    ]  # fmt: skip
    return [*rows, ["all", "", f"{found.changes:,.0f}", ""]]
