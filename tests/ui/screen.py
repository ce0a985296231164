"""A child on a real pseudo-terminal, and a small model of the screen it leaves: what a person would see."""

from __future__ import annotations

import errno
import os
import pty
import re
import struct
import sys
import termios
from fcntl import ioctl
from pathlib import Path

_PIECE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|[\r\n]|[^\x1b\r\n]+")


class Screen:
    """Rows of text under carriage returns, newlines, erasing and cursor moves; colours are dropped."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.row = 0
        self.column = 0

    def feed(self, text: str) -> Screen:
        for piece in _PIECE.finditer(text):
            if piece[2]:
                self._control(piece[2], int(piece[1] or 1) if piece[1].isdigit() or not piece[1] else 0)
            elif piece[0] == "\r":
                self.column = 0
            elif piece[0] == "\n":
                # A terminal's line discipline sends "\r\n" for it.
                self._down()
                self.column = 0
            else:
                self._print(piece[0])
        return self

    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]

    def _control(self, letter: str, number: int) -> None:
        if letter == "K":
            del self.rows[self.row][self.column :]
        elif letter == "A":
            self.row = max(0, self.row - number)

    def _down(self) -> None:
        self.row += 1
        while len(self.rows) <= self.row:
            self.rows.append([])

    def _print(self, text: str) -> None:
        for character in text:
            if self.column >= self.columns:
                self._down()
                self.column = 0
            row = self.rows[self.row]
            row.extend(" " * (self.column + 1 - len(row)))
            row[self.column] = character
            self.column += 1


def run_on_terminal(program: str, *, columns: int = 100, **environ: str) -> str:
    """Runs Python code on a terminal of its own; returns all that it wrote there, newlines as the program's."""
    root = Path(__file__).parents[2]
    clean = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR", "TERM")}
    settings = {"TERM": "xterm-256color", "PYTHONPATH": f"{root / 'src'}:{root}", "PYTHONUTF8": "1"}
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    actions = [(os.POSIX_SPAWN_DUP2, slave, number) for number in (0, 1, 2)]
    pid = os.posix_spawn(
        sys.executable, [sys.executable, "-c", program], {**clean, **settings, **environ}, file_actions=actions
    )
    os.close(slave)
    text = _read_all(master).decode().replace("\r\n", "\n")
    os.close(master)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, text
    return text


def _read_all(master: int) -> bytes:
    """What comes until the last descriptor of the other side is closed."""
    chunks: list[bytes] = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError as error:
            # Linux says so when nobody holds the terminal any more.
            if error.errno == errno.EIO:
                return b"".join(chunks)
            raise
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
