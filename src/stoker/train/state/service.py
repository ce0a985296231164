"""Serves the parts of a state that this rank holds, and fetches those of others, while none of them takes part.

A collective would need all ranks in the same line of the program, and a checkpoint is written by one. Each rank answers
from a thread: at the version that the asking rank is at, for which it may have to finish a step first. It cannot have
gone further: its next forward pass needs the rank that asks.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Protocol

import msgspec

from stoker.core.errors import ExchangeError, PeerLostError, StokerError, WireError
from stoker.core.processes.forking import Owner, at_fork
from stoker.train.ring.addresses import own_address
from stoker.train.ring.meeting import Assembly, listen_together, secret_of
from stoker.train.ring.reception import CallingCard, Reception, call
from stoker.train.state.messages import (
    FRAMING,
    PartHeader,
    PartKind,
    PartQuestion,
    RankStanding,
    pack,
    read,
    refusal,
)
from stoker.wire.blocking import BlockingChannel
from stoker.wire.sockets import keep_watch

_CALL_S = 30.0
"""Longest time to connect: the other rank's thread answers whatever its program does, as far as it gets the GIL."""
_PURPOSE = "state"


class PartHolder(Protocol):
    """What a rank holds."""

    def part(self, name: str) -> memoryview:
        """The bytes of a part, which nothing changes before the asking rank goes on; raises ``KeyError``."""
        ...


class PartService:
    """One rank's parts for the others, and theirs for it; made on all ranks, as a collective.

    Args:
        assembly: the ranks.
        holder: of this rank's parts.
        timeout_s: longest wait for a rank to reach a version.
        find_address: finds the address to listen on.

    Attributes:
        standing: of this rank.

    Raises:
        ExchangeError: the ranks can't listen; on all of them.

    Note: threads end with :meth:`close`. A forked child serves nothing.
    """

    def __init__(
        self, assembly: Assembly, holder: PartHolder, *, timeout_s: float,
        find_address: Callable[[], str] = own_address,
    ) -> None:  # fmt: skip
        self.rank, self.ranks = assembly.rank, list(assembly.ranks)
        self.standing = RankStanding()
        self._holder, self._timeout_s = holder, timeout_s
        self._moved = threading.Condition()
        self._is_closed = False
        self._channels: dict[int, BlockingChannel[PartKind]] = {}
        self._made = ExitStack()
        with ExitStack() as made:
            server, present = listen_together(assembly, find_address, made)
            self._addresses = [each.address for each in present]
            self._known = secret_of(present)
            self._served: set[socket.socket] = {server}
            made.enter_context(
                Reception(
                    server, self.rank, self._known, float("inf"), serve=self._serve, most=max(32, 2 * len(self.ranks))
                )
            )
            self._made = made.pop_all()
        self._owner = Owner()
        at_fork(self._in_child)

    def begin_forward(self) -> None:
        """A forward pass for training begins."""
        self._change(forwards=self.standing.forwards + 1, is_in_step=True)

    def change_weights(self) -> None:
        """Weights or the optimizer's state have changed, as they do on all ranks."""
        self._change(version=self.standing.version + 1, is_in_step=False)

    def end_program(self) -> None:
        """This rank needs no other one any more; it still serves its parts."""
        self._change(is_done=True)

    def fetch(self, place: int, name: str) -> bytearray:
        """The bytes of another rank's part, at this rank's version.

        Args:
            place: of the rank in the group.
            name: of the part.

        Raises:
            ExchangeError: the rank is gone, refuses, or is at another version.
        """
        try:
            channel = self._channel(place)
            channel.send_all(pack(PartKind.ASK, PartQuestion(name, self.standing.version)))
            header = read(self._answer(channel, PartKind.PART), PartHeader)
            found = bytearray(header.num_bytes)
            channel.into(memoryview(found))
        except (StokerError, OSError) as error:
            self._forget(place)
            rank = self.ranks[place]
            why = error.args[0] if isinstance(error, StokerError) else error
            raise ExchangeError(
                f"`rank {rank}` must serve its part of `{name}`, and does not: {why}", rank=rank, layer=name
            ) from None
        return found

    def standing_of(self, place: int) -> RankStanding | None:
        """Where another rank is; None if it is gone."""
        try:
            channel = self._channel(place)
            channel.send_all(pack(PartKind.ASK, PartQuestion("")))
            return read(self._answer(channel, PartKind.STANDING), RankStanding)
        except (StokerError, OSError):
            self._forget(place)
            return None

    def close(self) -> None:
        """Ends threads and closes sockets."""
        if self._is_closed or not self._owner.is_here:
            return
        with self._moved:
            self._is_closed = True
            self._moved.notify_all()
        for place in list(self._channels):
            self._forget(place)
        self._made.close()

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` has been called, or this is a forked child."""
        return self._is_closed or not self._owner.is_here

    def _change(self, **fields: int | bool) -> None:
        with self._moved:
            self.standing = msgspec.structs.replace(self.standing, **fields)
            self._moved.notify_all()

    # The side that asks.

    def _channel(self, place: int) -> BlockingChannel[PartKind]:
        found = self._channels.get(place)
        if found is None:
            until = time.monotonic() + min(_CALL_S, self._timeout_s)
            sock = call(self._addresses[place], self._known, CallingCard(_PURPOSE, self.rank, place), until)
            keep_watch(sock)
            # The other side says so itself when its own wait is over.
            found = self._channels[place] = BlockingChannel(sock, FRAMING, self._timeout_s + _CALL_S)
        return found

    def _forget(self, place: int) -> None:
        channel = self._channels.pop(place, None)
        if channel is not None:
            channel.close()

    @staticmethod
    def _answer(channel: BlockingChannel[PartKind], expected: PartKind) -> bytes:
        header = channel.header()
        if header is None:
            raise PeerLostError("its program has ended")
        body = channel.body(header.length)
        if header.kind is PartKind.REFUSED:
            raise ExchangeError(body.decode(errors="replace"))
        if header.kind is not expected:
            raise WireError(f"`peer` must send {expected.name} now, got {header.kind.name}")
        return body

    # The side that answers, in a thread for each connection.

    def _serve(self, card: CallingCard, sock: socket.socket) -> None:
        if card.ring != _PURPOSE:
            return
        with self._moved:
            self._served.add(sock)
        try:
            keep_watch(sock)
            channel = BlockingChannel(sock, FRAMING, 0.0)
            # Sending is bounded; receiving is not, since questions are rare.
            channel.bound(0.0, self._timeout_s)
            while (header := channel.header()) is not None:
                body = channel.body(header.length)
                if header.kind is not PartKind.ASK:
                    raise WireError(f"`peer` must send ASK now, got {header.kind.name}")
                channel.send_parts(self._answer_to(read(body, PartQuestion)))
        finally:
            with self._moved:
                self._served.discard(sock)

    def _answer_to(self, question: PartQuestion) -> Sequence[bytes | memoryview]:
        if not question.name:
            return [pack(PartKind.STANDING, self.standing)]
        if trouble := self._wait_for(question.version):
            return [refusal(trouble)]
        try:
            part = self._holder.part(question.name)
        except KeyError:
            return [refusal(f"it has no `{question.name}`")]
        return [pack(PartKind.PART, PartHeader(len(part))), part]

    def _wait_for(self, version: int) -> str:
        """Waits until this rank is at a version; why it is not, if the wait is over."""
        with self._moved:
            self._moved.wait_for(lambda: self.standing.version >= version or self._is_closed, self._timeout_s)
            own = self.standing.version
        if own == version:
            return ""
        return (
            f"it has changed its weights {own} times, and the rank that asks {version} times; "
            "step and load alike on all ranks"
        )

    def _in_child(self) -> None:
        """The connections are the parent's: a child that kept them open would hide the parent's end."""
        for sock in self._served:
            sock.close()
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
