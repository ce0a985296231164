"""One rank's place in a ring of connections: blocks to the next rank, and from the one before.

A thread sends what is queued, in that order, while the caller receives. Neither waits with a bound: the watch over the
ranks shuts the sockets when it finds that one has died, and both then notice.
"""

from __future__ import annotations

import enum
import queue
import socket
import threading
from collections.abc import Sequence

import msgspec

from stoker.core.errors import PeerLostError, WireError
from stoker.wire.blocking import BlockingChannel
from stoker.wire.framing import Framing

_MAX_BYTES = 4096


class LinkKind(enum.IntEnum):
    """What a frame on a link is."""

    OPENING = 1
    """What comes next; its bytes follow without further frames."""


FRAMING = Framing(
    "<HBBIB", 0x5352, 1, LinkKind, _MAX_BYTES,
    hints=("; it is no rank of this program", "; install the same stoker on all machines"),
)  # fmt: skip


class PassOpening(msgspec.Struct, frozen=True, array_like=True):
    """What two neighbours must agree about before the bytes of an exchange go from one to the other.

    Attributes:
        number: of the exchange on this rank, from 1.
        work: what is done, such as ``sum``.
        name: the caller's, such as a layer's.
        dtype: of the elements; empty for bytes.
        elements: their number.
        block: elements of a block.
    """

    number: int
    work: str
    name: str
    dtype: str
    elements: int
    block: int

    def __str__(self) -> str:
        what = f"{self.work} {self.number}, `{self.name}` of {self.elements} {self.dtype or 'bytes'}"
        return f"{what} in blocks of {self.block}"


def read_pass_opening(body: bytes) -> PassOpening:
    """The content of OPENING; raises :class:`WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=PassOpening)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`opening` of {len(body)} bytes is malformed: {error}") from None


class LinkBrokenError(Exception):
    """A connection of a link carries nothing more, or what it should not.

    Attributes:
        rank: at its other end.
        why: what that rank did, if it is known.
    """

    def __init__(self, rank: int, why: str = "") -> None:
        super().__init__(rank, why)
        self.rank = rank
        self.why = why


class RingLink:
    """A rank's two connections in a ring, which it owns.

    Args:
        following: the connection to the next rank; sent to.
        preceding: that from the rank before; received from.
        place: in the ring.
        ranks: of the ring in its order, at least 2, as errors name them.
        name: of its thread.
    """

    def __init__(
        self, following: socket.socket, preceding: socket.socket, *, place: int, ranks: Sequence[int], name: str
    ) -> None:
        self.place = place
        self.count = len(ranks)
        self.before = ranks[place - 1]
        self.after = ranks[(place + 1) % len(ranks)]
        self._following = BlockingChannel(following, FRAMING, 0.0)
        self._preceding = BlockingChannel(preceding, FRAMING, 0.0)
        self._queue: queue.SimpleQueue[bytes | memoryview | threading.Event | None] = queue.SimpleQueue()
        self._error: PeerLostError | None = None
        self._thread = threading.Thread(target=self._send_all, name=f"{name}-sender", daemon=True)
        self._thread.start()

    def agree(self, opening: PassOpening) -> None:
        """Sends an opening and compares that of the rank before; raises as :meth:`compare`."""
        self.announce(opening)
        self.compare(opening)

    def announce(self, opening: PassOpening) -> None:
        """Sends an opening. Bytes may follow at once: a rank that comes later finds them there."""
        body = msgspec.msgpack.encode(opening)
        self.send(FRAMING.pack(LinkKind.OPENING, len(body), 0) + body)

    def compare(self, opening: PassOpening) -> None:
        """Compares the opening of the rank before.

        Raises:
            LinkBrokenError: that rank is gone, or exchanges something else.
        """
        try:
            header = self._preceding.header()
            if header is None:
                raise LinkBrokenError(self.before)
            theirs = read_pass_opening(self._preceding.body(header.length))
        except PeerLostError as error:
            raise LinkBrokenError(self.before) from error
        except WireError as error:
            raise LinkBrokenError(self.before, f"sends what is no exchange: {error.args[0]}") from error
        if theirs != opening:
            raise LinkBrokenError(
                self.before,
                f"exchanges {theirs}, where this rank has {opening}: all ranks must exchange the same in one order",
            )

    def send(self, data: bytes | memoryview) -> None:
        """Queues bytes for the next rank; they must stay as they are until :meth:`drain`."""
        self._queue.put(data)

    def receive(self, target: memoryview) -> None:
        """Fills memory with the next bytes of the rank before; raises :class:`LinkBrokenError`."""
        try:
            self._preceding.into(target)
        except PeerLostError as error:
            raise LinkBrokenError(self.before) from error

    def answer(self, data: bytes) -> None:
        """Sends a few bytes to the rank before; raises :class:`LinkBrokenError`."""
        try:
            self._preceding.send_all(data)
        except PeerLostError as error:
            raise LinkBrokenError(self.before) from error

    def take_answer(self, target: memoryview) -> None:
        """Fills memory with what the next rank answers; raises :class:`LinkBrokenError`."""
        try:
            self._following.into(target)
        except PeerLostError as error:
            raise LinkBrokenError(self.after) from error

    def drain(self) -> None:
        """Returns when all that is queued has been sent; raises :class:`LinkBrokenError`."""
        sent = threading.Event()
        self._queue.put(sent)
        sent.wait()
        if self._error is not None:
            raise LinkBrokenError(self.after) from self._error

    def _send_all(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif self._error is None:
                try:
                    self._following.send_all(item)
                except PeerLostError as error:
                    self._error = error

    def shut(self) -> None:
        """Ends both connections; the threads that wait for them notice."""
        self._following.shut()
        self._preceding.shut()

    def close(self) -> None:
        """Ends the thread and closes both sockets; call :meth:`shut` before if it may wait for its peer."""
        self._queue.put(None)
        self._thread.join()
        self._following.close()
        self._preceding.close()

    def sockets(self) -> tuple[socket.socket, socket.socket]:
        """Both sockets, for a forked child to close its copies."""
        return self._following.sock, self._preceding.sock
