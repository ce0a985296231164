r"""A terminal that stoker shares with the program: what it can show, and one line at its bottom that is ours.

The program does not know of us, so its own output must come first: while our line is on the screen, the ``write`` of
the program's text streams takes it away before the program's text goes out, and remembers whether that text ended its
line. Our line is drawn only where the program left the cursor at the start of a line; a progress bar of the program
(``\r`` and no newline) is thus never overwritten. Text that reaches the terminal past Python's streams (C libraries,
child processes) is not seen here: it may follow our line on the same row, and nothing of it is erased.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TextIO

from stoker.ui.report_text import Style

Mode = Literal["off", "plain", "line"]

_ERASE = "\r\x1b[K"
_PUT_BACK_S = 0.02
"""A program that prints more often than this gets its terminal to itself between two drawings."""


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


def terminal_width(stream: TextIO) -> int:
    """Columns of a terminal, asked anew each time: people resize windows."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return shutil.get_terminal_size().columns


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() not in ("", "0", "false", "no")


class Cursor:
    """Whether the program left the cursor at the start of a line that holds nothing, judged by what it wrote."""

    def __init__(self) -> None:
        self.at_start = True
        self._blank = True

    def wrote(self, text: str) -> None:
        """Takes in a piece of the program's output."""
        if not text:
            return
        if text.endswith("\n"):
            self.at_start = self._blank = True
        elif text.strip(" \r"):
            self.at_start = self._blank = False
        else:
            # A bar that is cleared away writes "\r", spaces, "\r": after that the line is free again.
            self._blank = self._blank or (text.startswith("\r") and " " in text)
            self.at_start = self._blank and text.endswith("\r")


class StatusLine:
    """One line of text that stands below the program's output and never in it.

    Note:
        Any thread may call. In a forked child the program's writes go straight through.
    """

    def __init__(self, stream: TextIO, program_streams: Iterable[TextIO | None] | None = None) -> None:
        """Starts to watch the program's streams.

        Args:
            stream: the terminal to draw on.
            program_streams: streams the program writes to; standard output and error by default. Those that are no
                terminal do not move the cursor and are left alone.
        """
        self._stream = stream
        self._write = stream.write
        self._cursor = Cursor()
        # Reentrant: a signal handler may print while the same thread draws.
        self._lock = threading.RLock()
        self._owner = os.getpid()
        self._drawn = False
        self._text = ""
        self._put_back_s = 0.0
        self._closed = False
        self._watched: list[tuple[TextIO, Callable[[str], int]]] = []
        wanted = [sys.stdout, sys.stderr] if program_streams is None else program_streams
        for each in dict.fromkeys([*wanted, stream]):
            if each is not None and is_terminal(each):
                self._watch(each)

    def draw(self, text: str) -> bool:
        """Shows the text in place of the last one; False where the program holds the current line."""
        with self._lock:
            if self._closed or not self._cursor.at_start:
                return False
            self._put(_ERASE + text)
            self._drawn, self._text = True, text
            return True

    def say(self, text: str) -> None:
        """Writes a line that stays, above ours, and off the line of the program."""
        with self._lock:
            self._take_away()
            self._put(("" if self._cursor.at_start else "\n") + text + "\n")
            self._cursor.wrote("\n")

    def close(self) -> None:
        """Takes the line away and leaves the program's streams as they were."""
        with self._lock:
            self._take_away()
            self._closed = True
            self._text = ""
            for stream, hook in self._watched:
                # Another library may have put its own hook over ours; ours then only passes text on.
                if vars(stream).get("write") is hook:
                    del vars(stream)["write"]
            self._watched.clear()

    def _watch(self, stream: TextIO) -> None:
        original = stream.write

        def write(text: str, /) -> int:
            if self._closed or os.getpid() != self._owner:
                return original(text)
            with self._lock:
                self._take_away()
                self._cursor.wrote(text)
                count = original(text)
                self._put_back()
                return count

        try:
            vars(stream)["write"] = write
        except TypeError:
            # No instance attributes, so nothing can be watched: a stream of the program's own making.
            return
        self._watched.append((stream, write))

    def _take_away(self) -> None:
        if self._drawn:
            self._drawn = False
            self._put(_ERASE)

    def _put_back(self) -> None:
        """Shows the line again below what the program has just written, where that ended its own line.

        Without it a program that prints every step would take the line away as soon as it is drawn. Not in a debugger:
        its prompt is written past Python's streams and would follow our line on the same row.
        """
        if not self._text or not self._cursor.at_start or sys.gettrace() is not None:
            return
        now_s = time.monotonic()
        if now_s - self._put_back_s >= _PUT_BACK_S:
            self._put_back_s = now_s
            self._put(_ERASE + self._text)
            self._drawn = True

    def _put(self, text: str) -> None:
        try:
            self._write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # The terminal is gone; the program finds out by itself, when it writes.
            self._closed = True
