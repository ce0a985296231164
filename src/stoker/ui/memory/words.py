"""A memory report in words, the same in texts and on pages."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.records.memory import HeldTooLong, MemoryRemedy, MemoryReport, MemoryShare
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

PASSES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer's step", "start": "start"}
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


def share_rows(shares: Sequence[MemoryShare], unit: MemoryUnit, unnamed: str, shown: int = _SHOWN) -> list[list[str]]:
    """Figure and name of the first shares, the others summed."""
    rows = [[unit.of(share.bytes), share.name or unnamed] for share in shares[:shown]]
    left = shares[shown:]
    if left:
        rows.append([unit.of(sum(share.bytes for share in left)), f"and {len(left):,} more"])
    return rows


def write_verdict(report: MemoryReport) -> str:
    """The answer in one sentence."""
    unit = MemoryUnit(report.peak_bytes)
    where = f"{PASSES[report.phase]}{f' of {report.module}' if report.module else ''}"
    peak = f"peak {unit.of(report.peak_bytes)} {unit.name}"
    if report.available_bytes is not None:
        verdict = "FITS" if report.fits else "DOES NOT FIT"
        on = f" on {report.device}" if report.device else ""
        peak = f"{verdict}  peak {unit.of(report.peak_bytes)} of {unit.of(report.available_bytes)} {unit.name}{on}"
    return f"{peak}: {where}{f', {report.line}' if report.line else ''}"


def write_facts(report: MemoryReport) -> str:
    """The batch, the ranks, and that nothing was measured."""
    ranks = f" · {report.ranks} ranks" if report.ranks > 1 else ""
    return f"batch of {report.batch_size:,}{ranks} · predicted, nothing was computed"


def write_kept(held: HeldTooLong, unit: MemoryUnit) -> str:
    """Which variable keeps memory too long, and what to do."""
    where = f" ({held.assigned})" if held.assigned else ""
    line = held.last_used.rpartition(":")[2]
    saves = f"lowers the peak by {unit.of(held.saves_bytes)} {unit.name}" if held.saves_bytes else "the peak stays"
    return (
        f"`{held.variable}`{where} keeps {unit.of(held.bytes)} {unit.name} that nothing reads any more: "
        f"`del {held.variable}` after line {line} {saves}"
    )


def write_largest(report: MemoryReport) -> str:
    """The largest batch that fits, and how it is known."""
    recomputed = report.largest_recomputed
    more = f", {recomputed:,} with expandable segments and every block recomputed" if recomputed else ""
    return f"{report.largest_batch:,} as it is{more} (both sizes by the peaks of two traced ones)"


REMEDY_HEAD = ("", "saves", "peak", "step", "losses", "fits", "by")


def remedy_rows(remedies: Sequence[MemoryRemedy], unit: MemoryUnit) -> list[list[str]]:
    """Each remedy in the columns of :data:`REMEDY_HEAD`."""
    return [
        [
            remedy.name, unit.of(remedy.saves_bytes), unit.of(remedy.peak_bytes),
            "" if remedy.step_frac is None else f"{100 * remedy.step_frac:+.0f} %", remedy.losses,
            {True: "yes", False: "no", None: ""}[remedy.fits], remedy.how,
        ]
        for remedy in remedies
    ]  # fmt: skip
