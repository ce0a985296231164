"""How far something is, how fast it goes, and when it will be done: the figures, and one line that shows them.

The figures take the time as an argument. The line is drawn in place on a terminal; elsewhere it is a line now and then.
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
    """What was done over the last seconds."""

    def __init__(self, now: float) -> None:
        """Starts.

        Args:
            now: any clock in seconds; the same one ever after.
        """
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def mark(self, now: float, done: int) -> None:
        """Takes in how much is done in all."""
        self._marks.append((now, done))
        while len(self._marks) > 2 and self._marks[1][0] <= now - _WINDOW_S:
            self._marks.popleft()

    def per_s(self) -> float:
        """How much is done a second, over the last ten; 0 while that is not known."""
        (begin, before), (end, done) = self._marks[0], self._marks[-1]
        return (done - before) / (end - begin) if end > begin else 0.0

    def remaining_s(self, left: int) -> float | None:
        """Seconds for what is left at this pace; None while nothing moves."""
        rate = self.per_s()
        return left / rate if rate > 0 else None


def draw_bar(frac: float, cells: int = _BAR_CELLS, *, unicode: bool = True) -> str:
    """A share in [0, 1] as so many cells; eighths of a cell where the terminal has them."""
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
    """One line: how much of how much, the rate, the remaining time.

    Args:
        label: what is going on.
        done: bytes.
        total: bytes; 0 where that is not known yet.
        pace: of the bytes that are really moved.
        unicode: whether the terminal shows it.
        bar: whether one is drawn.
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
    """Shows progress while something runs; says nothing where it is over at once.

    Note: any thread may report; draws at most ten times a second.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None, *, quiet: bool = False) -> None:
        """Shows nothing yet.

        Args:
            label: what is going on.
            total: bytes; can be set later.
            stream: standard error, mostly; None shows nothing.
            quiet: nor does this.
        """
        self.label, self.total, self.done = label, total, 0
        self._skipped = 0
        self.note = ""
        """What else to say, at the end of the line; all there is to say while the total is not known."""
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
        """Adds what was done.

        Args:
            num_bytes: of it.
            moved: False for what was there before, which says nothing about the pace.
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
        """Takes the line away."""
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
            self._stream = None  # closed: what runs goes on


def _is_live(stream: TextIO) -> bool:
    try:
        return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    except (ValueError, AttributeError, OSError):
        return False
