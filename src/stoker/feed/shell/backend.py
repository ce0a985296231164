"""What starts a crew's processes, as the crew sees it."""

from __future__ import annotations

from typing import Any, Protocol

from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.shell.gateway import Gateway
from stoker.feed.transport.board import Board
from stoker.feed.transport.messages import Channel


class Child(Protocol):
    """A data worker forked by this process, which therefore learns of its end and reaps it."""

    pid: int

    def fileno(self) -> int:
        """Descriptor that is readable once the process has ended."""
        ...

    def kill(self) -> None:
        """Ends the process at once; does nothing when it has ended."""
        ...

    def reap(self) -> int | None:
        """Waits for the end; returns the wait status, or None if the program has taken it."""
        ...


class Template(Protocol):
    """A process that forks data workers on request, perhaps all but the first."""

    channel: Channel
    board: Board

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether the process was started."""
        ...

    def complete(self) -> None:
        """Starts the process, if that was deferred; raises ``WorkerStartError``."""
        ...

    def spawn(self, identity: WorkerIdentity) -> tuple[Channel, Child | None]:
        """Starts a worker; returns our end of its socket, and its process if that is a child of ours."""
        ...

    def dump_stack(self, pid: int) -> str:
        """The stack of a worker about to be killed; empty if it does not answer."""
        ...

    def ship(self, fd: int, sample: bytes) -> None:
        """Has the process send its copy of the program through ``fd``, with what it makes of a pickled sample item."""
        ...

    def close(self) -> None:
        """Ends the template and all its workers; returns when they are gone."""
        ...


class Backend(Protocol):
    """Starts templates."""

    def start(self, program: Program, context: Any, num_rows: int) -> Template:
        """A template for ``program``; raises ``WorkerStartError``."""
        ...

    def reach(self, program: Program) -> Gateway | None:
        """What answers for workers of ``program`` on other machines; None where there are none."""
        ...
