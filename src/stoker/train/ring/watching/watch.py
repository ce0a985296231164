"""The watch over the ranks of an exchange: beats between neighbours, and news of a rank at fault for all others.

It has separate connections, in a ring, so that news pass where bulk data is stuck. The first fault that a rank hears
of is the one that it names, and passes on in both directions.
"""

from __future__ import annotations

import enum
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from stoker.core.errors import WireError
from stoker.train.ring.watching.blame import NeighbourFacts, RankFault, beat_s, fault_of, lost_of
from stoker.wire.framing import Framing
from stoker.wire.polled import PolledChannel
from stoker.wire.sockets import shut

_MAX_BYTES = 4096
_NUMBER = struct.Struct("<Q")
_NEWS_S = 0.5
"""Longest wait for news that explain a broken connection, which come at the same time."""
_CLOSE_S = 1.0
"""Longest wait for the thread to pass a fault on."""
_ASKED_S = 2.0
"""Longest wait for the answer to a question: a beat and a message through all ranks."""


class WatchKind(enum.IntEnum):
    """What one rank says to its neighbour."""

    BEAT = 1
    """It runs, and is at this exchange."""
    FAULT = 2
    """A rank is at fault."""
    BYE = 3
    """It closes its exchange."""
    WHO = 4
    """A collective has failed: a rank that has lost a neighbour is to say so."""


FRAMING = Framing(
    "<HBBIB", 0x5357, 1, WatchKind, _MAX_BYTES,
    hints=("; it is no rank of this program", "; install the same stoker on all machines"),
)  # fmt: skip


_DIED = "has died, or closed its connections"


class FaultNews(msgspec.Struct, frozen=True, array_like=True):
    """FAULT: the rank, and what it did."""

    rank: int
    why: str


def read_beat(body: bytes) -> int:
    """The number in BEAT; raises :class:`WireError` for anything else."""
    if len(body) != _NUMBER.size:
        raise WireError(f"`beat` must be {_NUMBER.size} bytes, got {len(body)}")
    return _NUMBER.unpack(body)[0]


def read_news(body: bytes) -> FaultNews:
    """The content of FAULT; raises :class:`WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=FaultNews)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`fault` of {len(body)} bytes is malformed: {error}") from None


class _Neighbour:
    """A rank next to this one, and the connection to it."""

    def __init__(self, sock: socket.socket, rank: int) -> None:
        self.channel = PolledChannel(sock, FRAMING, blocking=False)
        self.rank = rank
        self.heard_s = time.monotonic()
        self.at = 0
        self.is_open = True
        self.has_left = False

    def send(self, kind: WatchKind, body: bytes = b"") -> None:
        if self.is_open and not self.channel.unsent:  # one that takes nothing is silent too, and is found so
            try:
                self.channel.send(kind, body)
            except OSError:
                pass  # its end is received

    @property
    def facts(self) -> NeighbourFacts:
        ended = "" if self.is_open else "has left" if self.has_left else _DIED
        return NeighbourFacts(self.rank, self.heard_s, self.at, ended)


class RankWatch:
    """Watches the neighbours of a rank, by a thread, until it is closed.

    Args:
        preceding: connection to the rank before, and its number.
        following: likewise, to the next one.
        timeout_s: of the process group.
        on_fault: called once, by the thread, when :attr:`fault` is set.
    """

    def __init__(
        self, preceding: tuple[socket.socket, int], following: tuple[socket.socket, int], timeout_s: float,
        on_fault: Callable[[], object],
    ) -> None:  # fmt: skip
        self._preceding, self._following = _Neighbour(*preceding), _Neighbour(*following)
        self._timeout_s = timeout_s
        self._on_fault = on_fault
        self._reported: RankFault | None = None
        self._is_closing = False
        self._is_asked = self._has_asked = False
        """Whether the ranks shall say who is lost; and whether that has been passed on."""
        self._at = 0
        self._moved_s = 0.0
        self.fault: RankFault | None = None
        """The first that was found or heard of."""
        self._faulted = threading.Event()
        self._ours, self._theirs = os.pipe()
        self._thread = threading.Thread(target=self._run, name="stoker-exchange-watch", daemon=True)
        self._thread.start()

    def begin(self, number: int) -> None:
        """An exchange begins."""
        self._moved_s = time.monotonic()
        self._at = number

    def moved(self) -> None:
        """The exchange moves."""
        self._moved_s = time.monotonic()

    def end(self) -> None:
        """The exchange is over."""
        self._at = 0

    def report(self, fault: RankFault) -> None:
        """Tells all ranks of a fault that was found elsewhere, unless one is known."""
        self._reported = self._reported or fault
        self._wake()

    def verdict(self, rank: int) -> RankFault:
        """The fault behind a broken connection to a rank.

        News may be on their way: the rank behind the connection may have shut it because of another one.
        """
        if not self._faulted.wait(min(_NEWS_S, self._timeout_s / 8)):
            has_left = any(each.has_left for each in (self._preceding, self._following) if each.rank == rank)
            self.report(RankFault(rank, "has left" if has_left else _DIED))
            self._faulted.wait(_CLOSE_S)
        return self.fault or RankFault(rank, "has closed its connections")

    def ask(self) -> RankFault | None:
        """The fault behind a failure that this rank can't explain; None if no rank that answers knows of one.

        All ranks are asked whether they have lost a neighbour, and a moment is waited.
        """
        self._is_asked = True
        self._wake()
        self._faulted.wait(min(_ASKED_S, self._timeout_s / 4))
        return self.fault

    def sockets(self) -> tuple[PolledChannel[WatchKind], PolledChannel[WatchKind]]:
        """Both connections, for a forked child to close its copies."""
        return self._preceding.channel, self._following.channel

    def abandon(self) -> None:
        """Closes what a forked child has inherited."""
        for channel in self.sockets():
            channel.abandon()
        os.close(self._ours)
        os.close(self._theirs)

    def close(self) -> None:
        """Says goodbye, ends the thread and closes the connections."""
        self._is_closing = True
        self._wake()
        self._thread.join()
        for channel in self.sockets():
            shut(channel.sock)
            channel.close()
        os.close(self._ours)
        os.close(self._theirs)

    def _wake(self) -> None:
        os.write(self._theirs, b"x")

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        both = (self._preceding, self._following)
        for neighbour in both:
            poll.register(neighbour.channel, select.POLLIN)
        period_s, next_beat_s = beat_s(self._timeout_s), 0.0
        while not self._is_closing:
            now = time.monotonic()
            if now >= next_beat_s:
                next_beat_s = now + period_s
                for neighbour in both:
                    neighbour.send(WatchKind.BEAT, _NUMBER.pack(self._at))
            ready = {fd for fd, _ in poll.poll(max(0.0, next_beat_s - now) * 1e3)}
            if self._ours in ready:
                os.read(self._ours, 4096)
            for neighbour in both:
                if neighbour.is_open and neighbour.channel.fileno() in ready:
                    self._hear(neighbour, poll)
            self._judge()
        for neighbour in both:
            neighbour.send(WatchKind.BYE)

    def _hear(self, neighbour: _Neighbour, poll: select.poll) -> None:
        try:
            frames = neighbour.channel.receive()
            for frame in frames or ():
                neighbour.heard_s = time.monotonic()
                match frame.kind:
                    case WatchKind.BEAT:
                        neighbour.at = read_beat(frame.body)
                    case WatchKind.FAULT:
                        news = read_news(frame.body)
                        self._set(RankFault(news.rank, news.why))
                    case WatchKind.BYE:
                        neighbour.has_left = True
                    case WatchKind.WHO:
                        self._is_asked = True
        except (WireError, OSError) as error:
            self._set(RankFault(neighbour.rank, f"sends what is no message of it: {error}"))
            frames = None
        if frames is None:
            # No fault by itself: all that this rank needs of it may be here already, as at a program's end.
            poll.unregister(neighbour.channel)
            neighbour.is_open = False

    def _judge(self) -> None:
        if self._reported is not None:
            self._set(self._reported)
        both = self._preceding, self._following
        if self._is_asked and self.fault is None:
            if not self._has_asked:
                self._has_asked = True
                for neighbour in both:
                    neighbour.send(WatchKind.WHO)
            lost = lost_of(time.monotonic(), both[0].facts, both[1].facts, self._timeout_s)
            if lost is not None:
                self._set(lost)
        at = self._at
        if at and self.fault is None:
            found = fault_of(time.monotonic(), self._moved_s, at, both[0].facts, both[1].facts, self._timeout_s)
            if found is not None:
                self._set(found)

    def _set(self, fault: RankFault) -> None:
        if self.fault is not None or self._is_closing:
            return
        self.fault = fault
        body = msgspec.msgpack.encode(FaultNews(fault.rank, fault.why))
        for neighbour in (self._preceding, self._following):
            # Also to the one at fault: if it runs, it would otherwise take us for dead when we close our connections.
            neighbour.send(WatchKind.FAULT, body)
        self._on_fault()
        self._faulted.set()
