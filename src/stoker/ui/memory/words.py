"""A memory report in words, the same in texts and on pages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from stoker.core.units import format_count
from stoker.records.memory import ArenaSizes, GrowingMemory, HeldTooLong, MemoryRemedy, MemoryReport, MemoryShare
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

PASSES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer's step", "start": "start",
          "evaluation": "evaluation"}  # fmt: skip
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


def write_growing(each: GrowingMemory, unit: MemoryUnit) -> str:
    """What grows with each step, until when, and what to do."""
    where = f" ({each.line})" if each.line else ""
    kept = "with the graph that made it: add `x.detach()` or `x.item()`" if each.keeps_graph else "which nothing frees"
    until = "" if each.steps is None else f"; the device is full after {format_count(each.steps, 'more step')}"
    return f"`{each.variable}`{where} keeps {_small(each.bytes, unit)} more after each step, {kept}{until}"


def _small(size: int, unit: MemoryUnit) -> str:
    """A size that may be far below the unit."""
    return unit.full(size) if size >= 1e8 or (unit.name == "MB" and size >= 1e5) else f"{size / 1e6:,.2f} MB"


def write_largest(report: MemoryReport) -> str:
    """The largest batch that fits, and how it is known."""
    fitted = report.largest_fitted
    more = f", {fitted:,} with `--fit auto`" if fitted else ""
    sizes = "both sizes" if fitted else "this size"
    how = f"{sizes} traced" if report.largest_traced else f"{sizes} by the peaks of two traced ones"
    return f"{report.largest_batch:,} as it is{more} ({how})"


_LEVELS = "▁▂▃▄▅▆▇█"


def write_course(report: MemoryReport, width: int) -> list[str]:
    """The step as one line, each character the fullest of its part from nothing to the peak, above its passes."""
    if not report.moments or width < len(_LEVELS):
        return []
    columns: list[tuple[int, str]] = []
    for column in range(width):
        first, last = (len(report.moments) * (column + each) // width for each in (0, 1))
        part = report.moments[first : max(last, first + 1)]
        fullest = max(part, key=lambda moment: sum(moment.bytes))
        columns.append((sum(fullest.bytes), fullest.phase))
    most = max(1, max(size for size, _ in columns))
    course = "".join(_LEVELS[max(0, -(-size * len(_LEVELS) // most) - 1)] for size, _ in columns)
    passes = ""
    for phase, found in itertools.groupby(phase for _, phase in columns):
        count, name = len(list(found)), phase if phase in PASSES else ""
        passes += (name if len(name) < count else "").ljust(count)
    return [course, passes.rstrip()]


def write_passes(report: MemoryReport) -> list[list[str]]:
    """Figure and name of each part of the run, with the line that reaches its peak."""
    unit = MemoryUnit(report.peak_bytes)
    return [
        [unit.of(each.bytes), f"{each.name}{f': {each.line}' if each.line else ''}"] for each in report.passes
    ]  # fmt: skip


def write_arena(report: MemoryReport) -> str:
    """What the step takes in one planned arena and of the allocator; empty if it was not placed."""
    arena = report.arena
    if arena is None:
        return ""
    unit = MemoryUnit(report.peak_bytes)

    def more(size: int) -> str:
        return f" ({100 * (size / max(1, arena.bound_bytes) - 1):+.1f} %)"

    proof = "no plan is smaller" if arena.is_smallest else f"within {_percent(arena)} of the bound, not certified"
    return (
        f"alive at once {unit.of(arena.bound_bytes)} · one planned arena {unit.of(arena.plan_bytes)}, {proof} · "
        f"expandable segments {unit.of(arena.expandable_bytes)}{more(arena.expandable_bytes)} · default allocator "
        f"{unit.of(arena.default_bytes)}{more(arena.default_bytes)}"
    )


def _percent(arena: ArenaSizes) -> str:
    return f"{100 * (arena.plan_bytes / max(1, arena.bound_bytes) - 1):.2f} %"


def write_next(command: str, peak_bytes: int | None = None, step_frac: float | None = None) -> str:
    """The command to type next where memory ran out, with what it is predicted to come to.

    Args:
        command: as it is typed.
        peak_bytes: predicted with it; None if nothing is.
        step_frac: time that it adds, as a share of a step's; None if nothing predicts it.
    """
    if peak_bytes is None:
        return f"what holds a step's memory, by line, and what lowers it: {command}"
    costs = "" if step_frac is None else f", step {100 * step_frac:+.0f} %"
    return f"predicted to need {MemoryUnit(peak_bytes).full(peak_bytes)}{costs}: {command}"


REMEDY_HEAD = ("", "saves", "peak", "step", "losses", "fits", "by")


def remedy_rows(remedies: Sequence[MemoryRemedy], unit: MemoryUnit) -> list[list[str]]:
    """Each remedy in the columns of :data:`REMEDY_HEAD`."""
    return [
        [
            remedy.name, unit.of(remedy.saves_bytes), unit.of(remedy.peak_bytes),
            "" if remedy.step_frac is None else f"{100 * remedy.step_frac:+.0f} %", remedy.losses,
            _write_fits(remedy), remedy.how,
        ]
        for remedy in remedies
    ]  # fmt: skip


def _write_fits(remedy: MemoryRemedy) -> str:
    if remedy.fits is None:
        return ""
    return ("yes" if remedy.certified else "predicted") if remedy.fits else "no"
