"""Progress of the demonstration: on a terminal one line, redrawn in place; elsewhere one line for each run."""

from __future__ import annotations

import time
from typing import TextIO

from stoker.ui.demo_text import Course
from stoker.ui.report_text import Style
from stoker.ui.terminal import Mode

_EVERY_S = 0.2
_BAR_COLUMNS = 24
_ERASE = "\r\x1b[K"


class DemoProgress:
    """Shows how far each run is.

    Args:
        stream: where to write.
        mode: whether to redraw a line, write plain lines, or nothing.
        style: the terminal's width and characters.
        steps: number of steps of each run.
    """

    def __init__(self, stream: TextIO, mode: Mode, style: Style, steps: int) -> None:
        self._stream, self._mode, self._style, self._steps = stream, mode, style, steps
        self._text = ""
        self._drawn_s = 0.0

    def begin(self, text: str) -> None:
        """Announces a run."""
        self._text = text
        if self._mode == "line":
            self._draw(f"{text}: starting")
        elif self._mode == "plain":
            self._put(self._style.clean(f"{text} …") + "\n")

    def follow(self, course: Course) -> None:
        """Redraws the line after output of the program."""
        now_s = time.monotonic()
        if self._mode != "line" or not course.losses or now_s - self._drawn_s < _EVERY_S:
            return
        self._drawn_s = now_s
        done = len(course.losses)
        full = round(_BAR_COLUMNS * min(1.0, done / self._steps))
        solid, light = ("█", "░") if self._style.unicode else ("#", ".")
        bar = solid * full + light * (_BAR_COLUMNS - full)
        self._draw(f"{self._text}  {bar}  {done} of {self._steps} steps, {now_s - course.started_s:.0f} s")

    def end(self) -> None:
        """Erases the line."""
        if self._mode == "line":
            self._put(_ERASE)

    def _draw(self, text: str) -> None:
        self._put(_ERASE + self._style.cut(text, self._style.width - 1))

    def _put(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._mode = "off"
