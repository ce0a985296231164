"""In a forked program that starts others: its own children are forks that were kept ready, instead of new pythons.

They are its real children, for they were forked from it before it loaded anything.
"""

from __future__ import annotations

import pickle
import socket
import subprocess
from typing import Any

from tests.warm.starting import can_ask, request_of


def start_in(ready: list[tuple[int, socket.socket]]) -> None:
    """From now on ``subprocess`` starts pythons in the processes at the other ends, while there are some."""
    start_anew = subprocess.Popen._execute_child  # type: ignore[attr-defined]

    def execute_child(self: subprocess.Popen[Any], args: Any, *others: Any) -> None:
        if not ready or not can_ask(args, others, is_parent=True):
            start_anew(self, args, *others)
            return
        request, streams, pipes = request_of(args, others)
        self.pid, control = ready.pop()
        with control:
            socket.send_fds(control, [pickle.dumps(request)], [*streams, *request.kept])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
