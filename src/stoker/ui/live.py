"""The live line: a sink of events that tells a person how the run goes, without getting in the program's way."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TextIO, cast

from stoker.core.processes.forking import Owner
from stoker.records.events import Event, Progress, RunEnded, WorkerLost
from stoker.ui.live_line import LiveState, announce
from stoker.ui.report_text import Style
from stoker.ui.terminal import Mode, StatusLine, choose_mode, style_for, terminal_width

REDRAW_S = 0.25
"""At most four updates a second."""
PLAIN_S = 30.0
"""Between two plain lines, where there is no live one."""


class LiveLine:
    """Shows progress on a terminal as one line that changes, elsewhere as a plain line every 30 seconds.

    It has no thread: it draws when an event comes, and not more often than four times a second.

    Note:
        Any thread may call. It never raises for the stream's sake, and does nothing in a forked child.
    """

    def __init__(
        self, stream: TextIO, clock: Callable[[], float] = time.monotonic, *, mode: Mode, style: Style
    ) -> None:
        """Writes nothing yet.

        Args:
            stream: to write to, usually standard error.
            clock: monotonic seconds.
            mode: see :func:`stoker.ui.terminal.choose_mode`.
            style: what the stream can show; its width is queried at each drawing.
        """
        self._stream = stream
        self._clock = clock
        self._mode: Mode = mode
        self._style = style
        self._state = LiveState()
        self._status = StatusLine(stream) if mode == "line" else None
        self._lock = threading.RLock()
        self._owner = Owner()
        self._drawn_s = -REDRAW_S
        # The first plain line comes after one full period: short runs stay silent until their report.
        self._said_s = clock()
        self._lost = 0

    @classmethod
    def on(cls, stream: TextIO, environ: Mapping[str, str], *, quiet: bool = False, rank: int = 0) -> LiveLine:
        """The live line that suits a stream and an environment."""
        return cls(stream, mode=choose_mode(stream, environ, quiet=quiet, rank=rank), style=style_for(stream, environ))

    def on_event(self, event: Event) -> None:
        """Processes one record and shows the changes."""
        if self._mode == "off" or not self._owner.is_here:
            return
        with self._lock:
            if isinstance(event, RunEnded):
                self.close()
                return
            self._state.add(event)
            text = announce(event, self._lost)
            self._lost += isinstance(event, WorkerLost)
            if text:
                self._say(f"stoker: {self._style.clean(text)}")
            if isinstance(event, Progress):
                self._refresh()

    __call__ = on_event

    def close(self) -> None:
        """Clears the line; later events show nothing."""
        with self._lock:
            self._mode = "off"
            if self._status is not None and self._owner.is_here:
                self._status.close()
            self._status = None

    def _refresh(self) -> None:
        now_s = self._clock()
        if self._mode == "line" and now_s - self._drawn_s >= REDRAW_S:
            # One column less: a terminal may wrap as soon as the last column is written.
            text = self._state.render(replace(self._style, width=terminal_width(self._stream) - 1))
            if text and self._status is not None and self._status.draw(text):
                self._drawn_s = self._said_s = now_s
        if now_s - self._said_s >= PLAIN_S:
            self._say(self._state.render(replace(self._style, width=200, color=False), bar=False))
            self._said_s = now_s

    def _say(self, text: str) -> None:
        if not text or _say_beside_bars(text, self._stream):
            return
        if self._status is not None:
            self._status.say(text)
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            # The stream is gone: no reader is left.
            self._mode = "off"


def _say_beside_bars(text: str, stream: TextIO) -> bool:
    """Lets tqdm or rich write the line where the program shows bars of theirs: they clear them and draw them again.

    They are used only if the program has imported them; stoker never does.
    """
    if type(sys.stderr).__module__ == "rich.file_proxy":  # a live display has replaced the stream
        return _wrote(lambda: sys.stderr.write(f"{text}\n"))
    bar: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bar is None or not getattr(bar, "_instances", None):
        return False
    return _wrote(lambda: cast("Callable[..., None]", bar.write)(text, file=stream))


def _wrote(write: Callable[[], object]) -> bool:
    try:
        write()
    except Exception:  # an error in a foreign library's bars must not reach the program
        return False
    return True
