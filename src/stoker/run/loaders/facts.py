"""What ``stats()`` and ``explain()`` of a loader return: plain values that a terminal and a notebook can show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape

from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.ui.explanation import MEANINGS
from stoker.ui.figures import write_count, write_percent, write_rate

_BAR_WIDTH, _BAR_HEIGHT = 240, 12
_WAIT_COLOUR, _PROGRAM_COLOUR = "#d08a2e", "#4a90b8"


@dataclass(frozen=True, kw_only=True)
class LoaderStats:
    """A loader's counters since stoker began to serve it.

    Rates and times are from the first delivery to the last one, as in the report of a run: without the start, and
    without the pauses between iterations.
    """

    dataset: str
    """Class name of the dataset."""
    tier: str
    """``elastic``, ``pinned``, ``process`` or ``stock``; empty before the first iteration."""
    declared_workers: int
    workers: int
    """Data workers alive now."""
    iterations: int
    batches: int
    samples: int
    bytes: int
    """Bytes of the batches that data workers sent."""
    samples_per_s: float
    """0.0 before the second batch."""
    batches_per_s: float
    input_wait_s: float
    """Time that the program waited inside ``iter`` and ``next``."""
    program_s: float
    """Time that it took itself, between batches."""
    starved_frac: float
    """Share of the batches that were not ready when the program requested them."""
    worker_cpu_s: float

    @property
    def input_wait_frac(self) -> float:
        """Share of the time that the program waited for batches."""
        total = self.input_wait_s + self.program_s
        return self.input_wait_s / total if total > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        """All figures by name; serialises to JSON."""
        return {**asdict(self), "input_wait_frac": self.input_wait_frac}

    def rows(self) -> list[tuple[str, str]]:
        """Names and figures as people read them."""
        workers = f"{self.workers} now, {self.declared_workers} declared"
        return [
            ("tier", self.tier or "not iterated yet"),
            ("workers", workers),
            ("throughput", f"{write_rate(self.samples_per_s)} samples/s, {write_rate(self.batches_per_s)} batches/s"),
            ("input wait", f"{write_percent(self.input_wait_frac)} of {format_seconds(self._total_s)}"),
            ("delivered", f"{format_count(self.batches, 'batch', 'batches')}, {write_count(self.samples)} samples"),
            ("from workers", format_bytes(self.bytes)),
        ]

    @property
    def _total_s(self) -> float:
        return self.input_wait_s + self.program_s

    def __repr__(self) -> str:
        lines = [f"{name:<13}{value}" for name, value in self.rows()]
        return "\n".join([f"LoaderStats of {self.dataset}", *("  " + line for line in lines)])

    def _repr_html_(self) -> str:
        """A static table with a bar; no scripts, nothing fetched."""
        rows = "".join(f"<tr><th style='text-align:left'>{n}</th><td>{escape(v)}</td></tr>" for n, v in self.rows())
        return f"<table><caption>stoker: {escape(self.dataset)}</caption>{rows}</table>{self._bar()}"

    def _bar(self) -> str:
        wait = round(_BAR_WIDTH * self.input_wait_frac, 1)
        label = f"input wait {write_percent(self.input_wait_frac)}, the program the rest"
        return (
            f'<svg role="img" aria-label="{label}" width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}">'
            f'<rect width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" fill="{_PROGRAM_COLOUR}"/>'
            f'<rect width="{wait}" height="{_BAR_HEIGHT}" fill="{_WAIT_COLOUR}"/><title>{label}</title></svg>'
        )


@dataclass(frozen=True, kw_only=True)
class LoaderExplanation:
    """How a loader is served, and why."""

    tier: str
    """``elastic``, ``pinned``, ``process`` or ``stock``."""
    reason: str
    evidence: tuple[str, ...] = ()
    settled: bool = True
    """False while samples have yet to be tried: the first iteration settles it."""

    def __repr__(self) -> str:
        head = f"{self.tier}: {MEANINGS.get(self.tier, '')}"
        if not self.settled:
            head += " (if a trial at the first iteration confirms it)"
        return "\n".join([head, f"  because {self.reason}", *(f"  also: {finding}" for finding in self.evidence)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"
