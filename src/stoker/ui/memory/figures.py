"""Bytes and shares of a memory report, in the same words and units everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.records.memory import MemoryShare
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_SHOWN = 6
"""Modules and lines that are shown one by one."""


class MemoryUnit:
    """Decimal units by the size of the peak, so that all figures of a report can be compared."""

    def __init__(self, peak: int) -> None:
        self.name, self._size = ("GB", 1e9) if peak >= 2e9 else ("MB", 1e6)

    def of(self, nbytes: float) -> str:
        """The number without its unit."""
        return f"{nbytes / self._size:,.1f}"

    def full(self, nbytes: float) -> str:
        """The number with its unit."""
        return f"{self.of(nbytes)} {self.name}"


def write_shares(shares: Sequence[MemoryShare], unit: MemoryUnit) -> str:
    """All shares but those of nothing, in one line."""
    return " · ".join(f"{share.name} {unit.of(share.bytes)}" for share in shares if share.bytes)


def render_shares(shares: Sequence[MemoryShare], unit: MemoryUnit, style: Style, unnamed: str) -> list[str]:
    """A table of the first shares, the others summed; ``unnamed`` stands for a share without a name."""
    rows = share_rows(shares, unit, unnamed)
    return render_table(["peak", ""], rows, style, right=(0,))


def share_rows(shares: Sequence[MemoryShare], unit: MemoryUnit, unnamed: str) -> list[list[str]]:
    """Figure and name of the first shares, the others summed."""
    rows = [[unit.of(share.bytes), share.name or unnamed] for share in shares[:_SHOWN]]
    left = shares[_SHOWN:]
    if left:
        rows.append([unit.of(sum(share.bytes for share in left)), f"and {len(left):,} more"])
    return rows
