"""What a crew knows of its workers on other machines: a gateway answers for them, as the template does for those here.

A worker there is met as any other, on a socket; the gateway holds its other end. Process ids and clocks of other
machines never get here: a worker is named by its number, and its end is what the gateway says it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from stoker.feed.program import WorkerIdentity
from stoker.feed.scaling import Observation
from stoker.feed.transport.board import Departure, Whereabouts
from stoker.feed.transport.messages import Channel

LEFT = "exited with status 0"
"""Cause of the end of a worker that ended by itself, with nothing to answer for."""


class Gone(NamedTuple):
    """A worker on another machine has ended, and writes to no slot."""

    number: int
    pid: int
    """On its machine: to be shown, never to be used here."""
    place: str
    cause: str
    seq: int = -1
    position: int = -1
    stack: str = ""
    blames: bool = False
    """Whether its own end was seen, by a machine that goes on: only then may a sample be the cause."""
    began: bool = True
    """False for one for which there was no room: nothing is lost."""

    def departure(self, *, expected: bool) -> Departure:
        """The same in the words of a crew."""
        where = Whereabouts(self.seq, self.position, 0.0)
        return Departure(
            self.number,
            self.pid,
            expected or not self.began,
            self.cause if self.began else LEFT,
            where,
            self.stack,
            place=self.place,
            blames=self.blames,
        )


class Said(NamedTuple):
    """One line for the user."""

    text: str


class HostLoss(NamedTuple):
    """Workers that are gone for one cause."""

    departures: tuple[Departure, ...]


class Gateway(Protocol):
    """The process that answers for one crew's workers on other machines."""

    @property
    def room(self) -> int:
        """Workers that the machines which have loaded the program take in all."""
        ...

    @property
    def limit(self) -> str:
        """What the links carry that carry no more, for people; empty while none is full."""
        ...

    @property
    def pid(self) -> int:
        """Its process here; 0 while there is none."""
        ...

    def fileno(self) -> int:
        """Descriptor that is readable when :meth:`hear` has something; -1 for none. Another one after a new start."""
        ...

    def prepare(self, ship: Callable[[int], None]) -> None:
        """Has other machines load the program, unless they have been asked; :attr:`room` grows with those that serve.

        Args:
            ship: has the template send the program through a descriptor.
        """
        ...

    def spawn(self, identity: WorkerIdentity) -> Channel:
        """Starts a worker; returns our end of its socket, on which leases can be sent at once.

        Raises:
            OSError: there is no gateway for now.
        """
        ...

    def observed(self, seen: Observation) -> None:
        """Takes in what the queue showed, for who divides other machines' processors among programs."""
        ...

    def end(self, number: int) -> None:
        """Ends a worker at once; :class:`Gone` follows."""
        ...

    def hear(self) -> list[Said | tuple[Gone, ...]] | None:
        """What it has said, without waiting; None once its process is gone, so that nobody writes to slots."""
        ...

    def close(self) -> None:
        """Ends its workers; returns when nobody writes to slots any more."""
        ...
