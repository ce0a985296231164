"""The live line of a service: what it did in the last second."""

from __future__ import annotations

from stoker.core.units import format_seconds
from stoker.records.events import ServedWindow
from stoker.ui.figures import write_rate
from stoker.ui.report_text import Style


class ServedLine:
    """Text of the line.

    Args:
        style: what the terminal shows.
    """

    def __init__(self, style: Style) -> None:
        self._style = style

    def render(self, window: ServedWindow) -> str:
        """The line, at most as wide as the terminal."""
        answered = window.outcomes.get("answered", 0)
        shed = window.outcomes.get("refused", 0) + window.outcomes.get("dropped", 0)
        parts = [window.model, f"{write_rate(answered / window.seconds)} answers/s"]
        if window.p50_s is not None and window.p99_s is not None:
            parts.append(f"p50 {format_seconds(window.p50_s)}, p99 {format_seconds(window.p99_s)}")
        if window.batch is not None:
            parts.append(f"batch {window.batch:.1f}")
        parts.append(f"queue {window.waiting}")
        if shed:
            parts.append(f"shed {write_rate(shed / window.seconds)}/s")
        if failed := window.outcomes.get("failed", 0):
            parts.append(f"failed {failed}")
        parts.append(f"version {window.version}")
        return self._style.cut(" · ".join(parts), self._style.width)
