r"""A terminal that stoker shares with the program: what it can show, and its last row, which stoker uses during a run.

Others may write to the terminal at any time: the program and its threads, a debugger, readline, libraries in C, data
workers, other ranks, children. stoker does not see their writes and need not: the margins of the terminal keep the last
row from scrolling, and a drawing is one write that leaves the cursor in place. So their text never overwrites the live
line, nor the line their text. The decision: ``docs/decisions/live_line_below_the_margins.md``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import Literal, TextIO

from stoker.ui.keeper import Keeper
from stoker.ui.report_text import Style

Mode = Literal["off", "plain", "line"]

LEAST_ROWS, LEAST_COLUMNS = 4, 20
"""A smaller terminal is the program's alone."""
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_WHOLE = f"{_SAVE}\x1b[r{_RESTORE}"
"""Takes margins away; setting them moves the cursor, which is therefore put back each time."""
_LEAVE_LAST_ROW = "\x1bD\x1b[A"
"""Down and up again: scrolls by one where the cursor is on the last row, and does nothing elsewhere."""
RELEASE = f"{_SAVE}\x1b[r\x1b[999;1H\x1b[0m\x1b[2K{_RESTORE}"
"""Removes margins and line at any terminal size: a cursor does not move beyond the last row."""


def choose_mode(stream: TextIO | None, environ: Mapping[str, str], *, quiet: bool = False, rank: int = 0) -> Mode:
    """How to talk during the run: a live line, a plain line now and then, or nothing."""
    if quiet or rank != 0 or stream is None:
        return "off"
    # Logs of CI systems are read as files, whatever the stream pretends to be.
    if not is_terminal(stream) or environ.get("TERM", "") in ("", "dumb") or _is_set(environ, "CI"):
        return "plain"
    return "line"


def style_for(stream: TextIO, environ: Mapping[str, str], *, width: int | None = None) -> Style:
    """What a stream can show; a report is at most 100 columns wide."""
    terminal = is_terminal(stream)
    columns = terminal_width(stream) if terminal else 100
    encoding = (getattr(stream, "encoding", None) or "ascii").lower().replace("-", "")
    return Style(
        width=width or max(60, min(100, columns)),
        color=terminal and not environ.get("NO_COLOR") and environ.get("TERM", "") not in ("", "dumb"),
        unicode=encoding.startswith("utf"),
    )


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is an open terminal."""
    try:
        return stream.isatty()
    except (ValueError, AttributeError, OSError):
        return False


def terminal_size(stream: TextIO) -> os.terminal_size | None:
    """Columns and rows of a terminal, queried each time: users resize windows."""
    try:
        return os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None


def terminal_width(stream: TextIO) -> int:
    """Columns of a terminal, or what the environment says of them."""
    size = terminal_size(stream)
    return shutil.get_terminal_size().columns if size is None else size.columns or 80


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() not in ("", "0", "false", "no")


class StatusLine:
    """One line of text on the last row of a terminal, which the program's output never reaches."""

    def __init__(self, stream: TextIO) -> None:
        """Writes nothing yet.

        Args:
            stream: the terminal to draw on.
        """
        self._stream = stream
        # Kept here, because the program may replace the stream's method.
        self._write = stream.write
        self._size: os.terminal_size | None = None
        self._keeper: Keeper | None = None
        self._closed = False

    def draw(self, text: str) -> bool:
        """Shows the text, which must fit the width, in place of the last one; False where there is no room for it."""
        size = terminal_size(self._stream)
        if self._closed or size is None or size.lines < LEAST_ROWS or size.columns < LEAST_COLUMNS:
            self._release()
            return False
        if self._keeper is None:
            self._keeper = Keeper.start(self._stream, RELEASE)
            if self._keeper is None:
                self._closed = True
                return False
        self._put(drawing(text, size.lines, resized=self._size not in (None, size)))
        self._size = size
        return not self._closed

    def say(self, text: str) -> None:
        """Writes a line that stays, among the program's output but on no line of it."""
        self._put(fresh_line(terminal_width(self._stream)) + text + "\n")

    def close(self) -> None:
        """Takes the line away; later drawings do nothing."""
        self._release()
        self._closed = True
        if self._keeper is not None:
            self._keeper.dismiss()
            self._keeper = None

    def _release(self) -> None:
        if self._size is not None:
            self._put((_erase_below() if terminal_size(self._stream) != self._size else "") + RELEASE)
            self._size = None

    def _put(self, text: str) -> None:
        if self._closed:
            return
        try:
            self._write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone; the program finds out by itself, when it writes.
            self._closed = True


def drawing(text: str, rows: int, *, resized: bool = False) -> str:
    """Codes that show a text on the last row and keep that row from scrolling; the cursor stays in place.

    They set up everything again, so they also work after a child (an editor, say) removed the margins, or after a
    resize.

    Args:
        text: narrower than the terminal.
        rows: of the terminal.
        resized: whether the last drawing was for another size: its remains are somewhere below the cursor.
    """
    rest = _erase_below() if resized else ""
    return f"{_WHOLE}{rest}{_LEAVE_LAST_ROW}{_SAVE}\x1b[1;{rows - 1}r\x1b[{rows};1H\x1b[0m{text}\x1b[K{_RESTORE}"


def fresh_line(columns: int) -> str:
    r"""What brings the cursor to the start of an empty line and erases nothing, wherever it is.

    As many blanks as there are columns: from the start of a row they fill it, and ``\r`` returns to it; from further on
    they wrap around, and ``\r`` goes to the start of the next row. (zsh does so before each prompt.)
    """
    return " " * columns + "\r"


def _erase_below() -> str:
    """Erases from the cursor to the end of the screen."""
    return "\x1b[J"
