"""A program on a real pseudo-terminal, and the screen that a person would see: pyte renders what was written."""

from __future__ import annotations

import errno
import os
import pty
import select
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyte

DEADLINE_S = 30.0
"""For what a test waits for; a program that gets stuck must not hold the suite up."""


class Terminal:
    """A program that runs on a terminal of its own.

    Args:
        program: Python code.
        columns: of the terminal.
        rows: of it.
        environ: variables besides those of this process.
    """

    def __init__(
        self, program: str, *, columns: int = 100, rows: int = 30, environ: dict[str, str] | None = None
    ) -> None:
        self.text = ""
        """Everything that was written to the terminal."""
        self.screen = pyte.HistoryScreen(columns, rows, history=1000, ratio=0.5)
        self._rendering = pyte.ByteStream(self.screen)
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self.pid = _start(program, slave, environ or {})
        self.status: int | None = None
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def lines(self) -> list[str]:
        """What is on the screen, from the top to the last line that is not empty."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def history(self) -> list[str]:
        """What has left the screen at its top."""
        width = self.screen.columns
        return ["".join(row[column].data for column in range(width)).rstrip() for row in self.screen.history.top]

    @property
    def last_row(self) -> str:
        """What is on the last row of the screen."""
        return self.screen.display[-1].rstrip()

    def await_screen(self, shows: Callable[[list[str]], bool]) -> None:
        """Reads until the screen shows something."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not shows(self.lines()):
            assert self._read(deadline_s), self.lines()

    def await_line(self, line: str) -> None:
        """Reads until a line of the screen is this one."""
        self.await_screen(lambda lines: line in lines)

    def type(self, keys: str) -> None:
        """Presses keys."""
        os.write(self._master, keys.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Gives the window another size."""
        self.screen.resize(rows, columns)
        termios.tcsetwinsize(self._master, (rows, columns))

    def finish(self) -> Terminal:
        """Reads until nobody holds the terminal any more."""
        deadline_s = time.monotonic() + DEADLINE_S
        while self._read(deadline_s):
            pass
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self

    def _read(self, deadline_s: float) -> bool:
        """Renders a piece; False at the end."""
        assert select.select([self._master], [], [], max(0.0, deadline_s - time.monotonic()))[0], self.lines()
        try:
            piece = os.read(self._master, 65536)
        except OSError as error:
            # Linux says so when nobody holds the terminal any more.
            if error.errno == errno.EIO:
                return False
            raise
        self.text += piece.decode(errors="replace")
        self._rendering.feed(piece)
        return bool(piece)


def _start(program: str, terminal: int, environ: dict[str, str]) -> int:
    root = Path(__file__).parents[2]
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "TERM")}
    settings = {"TERM": "xterm-256color", "PYTHONPATH": f"{root / 'src'}:{root}", "PYTHONUTF8": "1"}
    # A session whose terminal it is, so that what opens /dev/tty (getpass) finds it.
    code = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{program}"
    actions = [(os.POSIX_SPAWN_DUP2, terminal, number) for number in (0, 1, 2)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code],
        {**clean, **settings, **environ},
        file_actions=actions,
        setsid=True,
    )


def run_on_terminal(program: str, *, columns: int = 100, rows: int = 30, **environ: str) -> Terminal:
    """Runs Python code on a terminal of its own to its end, which must be a good one."""
    with Terminal(program, columns=columns, rows=rows, environ=environ) as terminal:
        terminal.finish()
        assert terminal.status == 0, terminal.lines()
    return terminal
