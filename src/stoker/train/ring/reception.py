"""Connections that are made and accepted between processes that share a secret; all others are closed."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from stoker.core.errors import PeerLostError, PeerRefusedError, StokerError, WireError
from stoker.wire import greeting
from stoker.wire.secrets import Secrets
from stoker.wire.sockets import dial, shut

_PURPOSE = "stoker-exchange-1"
"""With the version of what follows: a proof for one is none for another."""
_PROOFS_S = 5.0
"""Longest time for the proofs of one connection."""
_MOST_GREETINGS = 32
"""Connections whose proofs are awaited at once; further ones are closed."""
_TICK_S = 0.05


class CallingCard(msgspec.Struct, frozen=True, array_like=True):
    """What the side that connects proves with the secret: for which ring it does, who it is, and whom it means.

    The other side's names itself alone.
    """

    ring: str
    caller: int
    called: int


def read_card(data: bytes) -> CallingCard:
    """The content of a card; raises :class:`WireError` for anything else."""
    try:
        return msgspec.msgpack.decode(data, type=CallingCard)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`card` of {len(data)} bytes is malformed: {error}") from None


def call(address: str, known: Secrets, card: CallingCard, until: float) -> socket.socket:
    """A connection to a rank at ``tcp://host:port``, with proofs on both sides.

    Args:
        address: of the rank.
        known: the secret.
        card: of this side.
        until: on the monotonic clock.

    Raises:
        PeerLostError: it does not answer.
        PeerRefusedError: it does not know the secret, or is another rank.
    """
    sock = dial(address, _left_s(until))
    theirs = greeting.introduce(sock, known, msgspec.msgpack.encode(card), _PURPOSE, _left_s(until))
    if read_card(theirs).called != card.called:
        sock.close()
        raise PeerRefusedError(f"`{address}` must be rank {card.called} of the group, and is another")
    return sock


class Reception:
    """Accepts connections at a listening socket for as long as its context lasts; proofs are awaited side by side.

    Args:
        server: listens.
        rank: whose socket it is; its place in the group.
        known: the secret.
        until: on the monotonic clock.
        serve: called in the connection's own thread once it is proven, in place of :meth:`wait_for`; the socket is
            closed behind it.
        most: connections that are proven or served at once; further ones are closed.
    """

    def __init__(
        self, server: socket.socket, rank: int, known: Secrets, until: float, *,
        serve: Callable[[CallingCard, socket.socket], object] | None = None, most: int = _MOST_GREETINGS,
    ) -> None:  # fmt: skip
        self._server, self._rank, self._known, self._until = server, rank, known, until
        self._serve, self._most = serve, most
        self._arrived: queue.SimpleQueue[tuple[CallingCard, socket.socket]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._greeted: dict[socket.socket, threading.Thread] = {}
        self._is_over = False
        self.refused: list[str] = []
        """Why connections were closed."""
        self._thread = threading.Thread(target=self._accept, name="stoker-exchange-accept", daemon=True)

    def __enter__(self) -> Reception:
        # What serves for long is ended by shutting its socket.
        self._server.settimeout(_TICK_S if self._serve is None else None)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        shut(self._server)  # `accept` notices at once
        self._thread.join()
        with self._lock:
            greeted = dict(self._greeted)
        for sock, thread in greeted.items():
            shut(sock)
            thread.join()
        while not self._arrived.empty():
            self._arrived.get()[1].close()

    def wait_for(self, expected: set[tuple[str, int]]) -> dict[str, socket.socket]:
        """The connections by ring; ``expected`` holds each ring and who connects.

        Raises:
            PeerLostError: not all have come in time.
        """
        left, found = set(expected), dict[str, socket.socket]()
        while left:
            try:
                card, sock = self._arrived.get(timeout=_left_s(self._until))
            except queue.Empty:
                for sock in found.values():
                    sock.close()
                names = ", ".join(f"rank {caller} of the group ({ring})" for ring, caller in sorted(left))
                refused = f"; refused: {self.refused[-1]}" if self.refused else ""
                raise PeerLostError(f"no connection came from {names}{refused}") from None
            if (card.ring, card.caller) in left:
                left.discard((card.ring, card.caller))
                found[card.ring] = sock
            else:
                sock.close()
        return found

    def _accept(self) -> None:
        while not self._is_over:
            try:
                sock, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                break
            thread = threading.Thread(target=self._greet, args=(sock,), name="stoker-exchange-greet", daemon=True)
            with self._lock:
                is_full = len(self._greeted) >= self._most
                if not is_full:
                    self._greeted[sock] = thread
            if is_full:
                sock.close()
            else:
                thread.start()

    def _greet(self, sock: socket.socket) -> None:
        own = msgspec.msgpack.encode(CallingCard("", -1, self._rank))
        try:
            card = read_card(greeting.admit(sock, self._known, own, _PURPOSE, min(_PROOFS_S, _left_s(self._until))))
            if card.called != self._rank:
                sock.close()
                raise PeerRefusedError(f"`rank {card.caller}` of the group meant rank {card.called}")
            if self._serve is None:
                self._arrived.put((card, sock))
            else:
                with sock:
                    self._serve(card, sock)
        except (StokerError, OSError) as error:
            self.refused.append(str(error))
            sock.close()
        finally:
            with self._lock:
                del self._greeted[sock]


def _left_s(until: float) -> float:
    return max(0.1, until - time.monotonic())
