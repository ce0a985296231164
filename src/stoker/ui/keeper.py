"""Removes the live line when the process that drew it cannot: killed, ``os._exit``, ``exec``.

A terminal keeps its margins until they are reset. So a short shell command waits for the end of a pipe that only this
process holds open, and then resets the terminal. It is not a child of this process, which may wait for its children,
and runs in a separate session, so no signal of terminal or process group ends it before.
"""

from __future__ import annotations

import os
from typing import TextIO

from stoker.core.processes.forking import Owner, at_fork

_SCRIPT = 'exec 3<&0; { read -r _ <&3 || printf %s "$0"; } &'
"""Reads a last line or the end of the pipe; the ``&`` detaches it from its parent."""


class Keeper:
    """A process that outlives this one by the moment it takes to write a few bytes."""

    def __init__(self, pipe: int) -> None:
        """Holds the end of the pipe that keeps it waiting."""
        self._pipe = pipe
        self._owner = Owner()
        # Forked children live on; without this they would hold the pipe open.
        at_fork(self._let_go)

    @classmethod
    def start(cls, stream: TextIO, farewell: str) -> Keeper | None:
        """Starts one; None where no process can be had.

        Args:
            stream: the terminal that it writes to.
            farewell: what it writes there when this process ends without a word.
        """
        reading, writing = -1, -1
        try:
            reading, writing = os.pipe()
            actions = [
                (os.POSIX_SPAWN_DUP2, stream.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, reading, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            pid = os.posix_spawn(
                "/bin/sh", ["sh", "-c", _SCRIPT, farewell], {"LC_ALL": "C"}, file_actions=actions, setsid=True
            )
            status = os.waitpid(pid, 0)[1]
        except (OSError, ValueError):
            status = -1
        if reading >= 0:
            os.close(reading)
        if status != 0:
            if writing >= 0:
                os.close(writing)
            return None
        return cls(writing)

    def dismiss(self) -> None:
        """Ends it without a word: the terminal is in order."""
        if self._pipe >= 0 and self._owner.is_here:
            os.write(self._pipe, b"\n")
        self._let_go()

    def _let_go(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
