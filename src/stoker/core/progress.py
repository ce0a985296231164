"""Progress, rate and remaining time: the figures, and one line that shows them.

The figures take the time as an argument. The line is redrawn in place on a terminal; elsewhere one is printed at times.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from types import TracebackType
from typing import TextIO

from stoker.core.units import format_bytes, format_seconds

_WINDOW_S = 10.0
_DRAW_S = 0.1
_PLAIN_S = 10.0
_BAR_CELLS = 24
_ERASE = "\r\x1b[K"


class ProgressRate:
    """The rate over the last seconds."""

    def __init__(self, now: float) -> None:
        """Starts with nothing done.

        Args:
            now: time of any clock, in seconds; all later times are of the same one.
        """
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def mark(self, now: float, done: int) -> None:
        """Records how much is done in total."""
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW_S:
            self._marks.popleft()

    def per_s(self) -> float:
        """How much is done per second, over the last ten; 0 while unknown."""
        (begin, before), (end, done) = self._marks[0], self._marks[-1]
        return (done - before) / (end - begin) if end > begin else 0.0

    def remaining_s(self, left: int) -> float | None:
        """Seconds for what is left at this pace; None while nothing moves."""
        rate = self.per_s()
        return left / rate if rate > 0 else None


def draw_bar(frac: float, cells: int = _BAR_CELLS, *, unicode: bool = True) -> str:
    """A bar for a share in [0, 1]; with eighths of a cell if ``unicode``."""
    frac = min(1.0, max(0.0, frac))
    if not unicode:
        full = int(frac * cells)
        return "#" * full + "." * (cells - full)
    full, eighths = divmod(int(frac * cells * 8), 8)
    part = " ▏▎▍▌▋▊▉"[eighths] if full < cells else ""
    return ("█" * full + part).ljust(cells, " ")[:cells]


def write_progress(
    label: str, done: int, total: int, pace: ProgressRate, *, unicode: bool = True, bar: bool = True
) -> str:
    """One line: the amount done and in total, the rate, the remaining time.

    Args:
        label: what is being done.
        done: bytes.
        total: bytes; 0 while unknown.
        pace: rate of the bytes that are really moved.
        unicode: whether the terminal shows it.
        bar: whether to draw one.
    """
    frac = done / total if total else 0.0
    edges = ("▕", "▏") if unicode else ("[", "]")
    drawn = f" {edges[0]}{draw_bar(frac, unicode=unicode)}{edges[1]}" if bar else ""
    remaining_s = pace.remaining_s(max(0, total - done))
    left = "" if remaining_s is None or done >= total else f"  {format_seconds(remaining_s)} left"
    rate = pace.per_s()
    speed = f"  {format_bytes(rate)}/s" if rate > 0 else ""
    return f"{label}{drawn} {100 * frac:3.0f} %  {format_bytes(done)} of {format_bytes(total)}{speed}{left}"


class ProgressLine:
    """Shows the progress of a task; shows nothing if it is over at once.

    Note: any thread may report; draws at most ten times a second.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None, *, quiet: bool = False) -> None:
        """Shows nothing yet.

        Args:
            label: what is being done.
            total: bytes; can be set later.
            stream: standard error, mostly; None shows nothing.
            quiet: whether to show nothing.
        """
        self.label, self.total, self.done = label, total, 0
        self._skipped = 0
        self.note = ""
        """Text for the end of the line; the only text while the total is unknown."""
        self._stream = None if quiet else stream
        self._live = self._stream is not None and _is_live(self._stream)
        self._unicode = (getattr(stream, "encoding", None) or "ascii").lower().startswith("utf")
        self._lock = threading.Lock()
        self._began = self._drawn = time.monotonic()
        self._pace = ProgressRate(self._began)
        self._shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def advance(self, num_bytes: int, *, moved: bool = True) -> None:
        """Adds bytes that are done.

        Args:
            num_bytes: how many.
            moved: False for bytes that were there before, which do not count for the rate.
        """
        with self._lock:
            self.done += num_bytes
            if not moved:
                self._skipped += num_bytes
            now = time.monotonic()
            self._pace.mark(now, self.done - self._skipped)
            if self._stream is not None and now - self._drawn >= (_DRAW_S if self._live else _PLAIN_S):
                self._drawn = now
                self._draw()

    def close(self) -> None:
        """Erases the line."""
        with self._lock:
            if self._shown and self._live:
                self._put(_ERASE)
            self._stream = None

    def _draw(self) -> None:
        text = f"{self.label}  {self.note}"
        if self.total or not self.note:
            drawn = write_progress(self.label, self.done, self.total, self._pace, unicode=self._unicode, bar=self._live)
            text = f"{drawn}  {self.note}".rstrip()
        width = shutil.get_terminal_size().columns - 1
        self._put(_ERASE + text[:width] if self._live else f"{text}\n")
        self._shown = True

    def _put(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._stream = None  # closed: the task continues


def _is_live(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except (ValueError, AttributeError, OSError):
        return False
