"""A worker's connections: one thread waits for all of them and answers small hits; other threads do the rest.

With one thread per connection, threads would pass the GIL to one another. This costs more than a small hit and delays
some requests for long. So one thread owns every connection that is idle or requests small cached ranges. A greeting, a
large answer or a fetch gets a thread for its duration.
"""

from __future__ import annotations

import os
import select
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from stoker.cache.cluster.messages.frames import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    RANGE,
    Hello,
    Kind,
    Read,
    Reason,
    Refused,
    Stat,
    decode_body,
)
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.hits import HEAD_BYTES, LastAsked
from stoker.cache.cluster.server.serving import SMALL_BYTES, Outgoing, PageServing, ServedCounts
from stoker.core.errors import PeerLostError, PeerRefusedError, WireError

GREETING_S = 5.0
"""Time that a client has to authenticate."""
STUCK_S = 30.0
"""A client that takes nothing of its answer for this long is gone."""
_LINGER_S = 1.0
"""A thread that has answered waits so long for the next request before it hands the connection back."""
_CLIENT_KINDS = frozenset({Kind.READ, Kind.STAT, Kind.ASK_RING, Kind.ASK_STATUS, Kind.PING})


@dataclass(slots=True, eq=False)
class Connection:
    """A client's connection.

    Attributes:
        channel: to the client.
        hello: who it is; None until it has said so.
        epoch: of the ring that it knows.
        busy: whether it is being answered.
        used_at: when it asked last (monotonic clock).
        counts: what it was given.
        recent: what it asked for last.
        rest: of an answer that it did not take at once.
    """

    channel: NodeChannel
    hello: Hello | None = None
    epoch: int = 0
    busy: bool = True
    used_at: float = 0.0
    counts: ServedCounts = field(default_factory=ServedCounts)
    recent: LastAsked = field(default_factory=LastAsked)
    rest: bytes = b""

    @property
    def identity(self) -> str:
        """Proven name of the client."""
        return "" if self.hello is None else self.hello.identity


class ReactorHost(Protocol):
    """What connections need of the server."""

    @property
    def draining(self) -> bool:
        """Whether nothing is fetched any more."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the ring that is known."""
        ...

    def secured(self, channel: NodeChannel) -> NodeChannel:
        """A new connection's channel, encrypted if it is one of those that are."""
        ...

    def greet(self, channel: NodeChannel) -> Hello:
        """Lets a client in, or raises."""
        ...

    def answer(self, connection: Connection, kind: Kind) -> None:
        """Answers requests that are not about an object."""
        ...

    def check(self, connection: Connection, request: Read) -> None:
        """Raises :class:`WireError` for a request that this client may not make."""
        ...


class Reactor:
    """All connections of a server.

    Args:
        host: the server.
        serving: answers requests for objects.
    """

    def __init__(self, host: ReactorHost, serving: PageServing) -> None:
        self._host = host
        self._serving = serving
        self._small = serving.hits.small
        self._lock = threading.Lock()
        self._open: set[Connection] = set()
        self._ended = ServedCounts()
        self._idle: dict[int, Connection] = {}
        """Connections that the one thread polls, by descriptor."""
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._out = Outgoing(None)
        self._room = memoryview(bytearray(HEAD_BYTES + SMALL_BYTES))
        self._thread = threading.Thread(target=self._wait, name="stoker-hits", daemon=True)
        self.faults = 0

    def start(self) -> None:
        """Waits for requests from now on."""
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread.start()

    def close(self) -> None:
        """Ends all connections."""
        if self._closing:
            return
        self._closing = True
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for connection in self.all():
            connection.channel.shut()
        for connection in list(self._idle.values()):
            self._end(connection)
        self._poll.close()
        os.close(self._wake)

    def begin(self, channel: NodeChannel) -> None:
        """Takes a new connection."""
        connection = Connection(channel)
        with self._lock:
            self._open.add(connection)
        self._in_thread(connection)

    def all(self) -> list[Connection]:
        """The open connections."""
        with self._lock:
            return list(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def num_clients(self) -> int:
        """Connected clients that are not workers."""
        return len({one.hello.process for one in self.all() if one.hello and not one.hello.node})

    def totals(self) -> ServedCounts:
        """Counters of all connections, ended ones included."""
        total = ServedCounts()
        with self._lock:
            total.add(self._ended)
            connections = list(self._open)
        for connection in connections:
            total.add(connection.counts)
        return total

    def _wait(self) -> None:
        """Answers what can be answered at once, connection by connection."""
        poll, idle, unregister, quick = self._poll.poll, self._idle, self._poll.unregister, self._quick
        while not self._closing:
            for number, _ in poll():
                connection = idle.get(number)
                if connection is not None and not quick(connection):
                    del idle[number]
                    unregister(number)
                    self._in_thread(connection)

    def _quick(self, connection: Connection) -> bool:
        """Answers requests that have come; False if this takes a thread."""
        channel, recent = connection.channel, connection.recent
        try:
            if not channel.arrived():
                return False
            epoch = self._host.epoch
            while channel.buffered:
                at = channel.behind(recent.prefix, RANGE.size)
                answer: memoryview | bytes | None = None
                if at >= 0:
                    start, length = RANGE.unpack_from(channel.received, at)
                    if length <= SMALL_BYTES:
                        answer = self._small(recent, start, length, epoch, self._room)
                if answer is not None:
                    channel.skip(len(recent.prefix) + RANGE.size)
                    sent = channel.send_now(answer)
                    connection.counts.hit(len(answer) - HEAD_BYTES)  # the client works meanwhile
                else:
                    answer = self._other(connection, epoch)
                    if answer is None:
                        return False
                    sent = channel.send_now(answer)
                if sent < len(answer):
                    connection.rest = bytes(answer[sent:])
                    return False
            connection.used_at = time.monotonic()
        except (PeerLostError, WireError):
            return False  # a thread runs into it as well, and reports it
        except Exception:  # a connection's boundary: the others continue
            self.faults += 1
            channel.shut()
            return False
        return True

    def _other(self, connection: Connection, epoch: int) -> bytes | None:
        """The answer to a small request that is not for the recent object; None if it takes a thread."""
        frame = connection.channel.whole_frame()
        if frame is None or frame[0].kind is not Kind.READ:
            return None
        header, body = frame
        request = decode_body(Kind.READ, body)
        if not isinstance(request, Read):
            return None
        connection.epoch = connection.recent.asked_epoch = header.note
        self._out.epoch = epoch
        if not self._serving.at_once(self._out, request, connection.identity, connection.counts, connection.recent):
            return None
        connection.channel.skip(HEADER_BYTES + header.length)
        return self._out.taken()

    def _in_thread(self, connection: Connection) -> None:
        connection.busy = True
        threading.Thread(target=self._converse, args=(connection,), name="stoker-serve", daemon=True).start()

    def _converse(self, connection: Connection) -> None:
        """Does slow work in a thread, then returns the connection or ends it."""
        try:
            self._greet_once(connection)
            stays = self._answer(connection)
        except WireError as error:
            self._complain(connection.channel, str(error))
            stays = False
        except (PeerLostError, PeerRefusedError):
            stays = False  # the client left, or was refused
        except Exception:  # a connection's boundary: counted, and the others continue
            self.faults += 1
            stays = False
        if stays:
            connection.busy = False
            number = connection.channel.fileno()
            self._idle[number] = connection
            try:
                self._poll.register(number, select.EPOLLIN)
                return
            except (OSError, ValueError):  # the server has closed
                self._idle.pop(number, None)
        self._end(connection)

    def _greet_once(self, connection: Connection) -> None:
        if connection.hello is None:
            connection.channel = channel = self._host.secured(connection.channel)
            channel.deadline = time.monotonic() + GREETING_S
            connection.hello = self._host.greet(channel)
            channel.deadline = None
            channel.bound(0.0, STUCK_S)

    def _end(self, connection: Connection) -> None:
        with self._lock:
            if connection in self._open:
                self._open.discard(connection)
                self._ended.add(connection.counts)
        connection.channel.close()

    def _complain(self, channel: NodeChannel, text: str) -> None:
        try:
            channel.send(Refused(Reason.MALFORMED, text))
        except PeerLostError:
            pass  # the client did not wait for the answer

    def _answer(self, connection: Connection) -> bool:
        """Answers requests as long as they are large or come quickly; False when the client has left."""
        channel, out = connection.channel, Outgoing(connection.channel)
        if connection.rest:
            channel.send_all(connection.rest)
            connection.rest = b""
        is_small = False
        while not self._closing:
            if channel.direct and not channel.buffered and (is_small or not channel.wait(_LINGER_S)):
                return True
            header = channel.header()
            if header is None:
                return False
            connection.epoch, connection.busy, connection.used_at = header.note, True, time.monotonic()
            connection.recent.asked_epoch = header.note
            if header.kind not in _CLIENT_KINDS or header.length > MAX_BODY_BYTES:
                raise WireError(f"`{header.kind.name}` frame of {header.length} bytes is no request")
            body = channel.body(header.length)
            out.epoch = self._host.epoch
            before = connection.counts.sent_bytes
            if header.kind is not Kind.READ or not self._serving.again(out, body, connection.recent, connection.counts):
                self._answer_frame(connection, out, header.kind, body)
            is_small = connection.counts.sent_bytes - before <= SMALL_BYTES
            connection.busy = False
        return False

    def _answer_frame(self, connection: Connection, out: Outgoing, kind: Kind, body: bytes) -> None:
        frame = decode_body(kind, body)
        match frame:
            case Read():
                self._host.check(connection, frame)
                self._serving.read(
                    out, frame, connection.identity, connection.counts, connection.recent,
                    filling=not self._host.draining,
                )  # fmt: skip
            case Stat():
                self._serving.stat(out, frame, connection.identity, connection.counts)
            case _:
                self._host.answer(connection, kind)
