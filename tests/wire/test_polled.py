"""Frames and descriptors over a socketpair, of which one end never waits."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.wire.framing import Frame, Placing
from stoker.wire.polled import PolledChannel
from tests.wire.protocols import FRAMING, Kind

Ends = tuple[PolledChannel[Kind], PolledChannel[Kind]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = socket.socketpair()
    pair = PolledChannel(one, FRAMING, blocking=False), PolledChannel(other, FRAMING, blocking=True)
    yield pair
    for channel in pair:
        channel.close()


def test_a_full_peer_never_blocks_who_polls(ends: Ends) -> None:
    ours, theirs = ends
    body = os.urandom(8 << 20)
    ours.send(Kind.PLACED, body)
    ours.send(Kind.LAST)
    assert ours.unsent
    frames: list[Frame[Kind]] = []
    while len(frames) < 2:
        ours.flush()
        frames += theirs.receive() or []
    assert not ours.unsent
    assert frames == [Frame(Kind.PLACED, body), Frame(Kind.LAST, b"")]


def test_a_held_frame_goes_with_the_next_or_a_flush(ends: Ends) -> None:
    ours, theirs = ends
    reading, writing = os.pipe()
    ours.hold(Kind.SMALL, b"first")
    assert ours.unsent
    assert theirs.receive(wait=False) == []
    ours.send(Kind.PLACED, b"second", (writing,))
    os.close(writing)
    held, ring = theirs.receive() or []
    assert held == Frame(Kind.SMALL, b"first")
    assert (ring.kind, ring.body, len(ring.fds)) == (Kind.PLACED, b"second", 1)
    for fd in (*ring.fds, reading):
        os.close(fd)
    ours.hold(Kind.SMALL, b"third")
    ours.flush()
    assert not ours.unsent
    assert theirs.receive() == [Frame(Kind.SMALL, b"third")]


def test_a_tail_continues_the_body(ends: Ends) -> None:
    ours, theirs = ends
    ours.send(Kind.PLACED, b"head", tail=memoryview(b"tail"))
    frames: list[Frame[Kind]] = []
    while not frames:
        frames += theirs.receive() or []
    assert frames == [Frame(Kind.PLACED, b"headtail")]


def test_descriptors_arrive_and_work(ends: Ends) -> None:
    ours, theirs = ends
    reading, writing = os.pipe()
    try:
        ours.send(Kind.PLACED, b"", (writing,))
        (frame,) = theirs.receive() or []
        (received,) = frame.fds
        os.write(received, b"through")
        os.close(received)
        assert os.read(reading, 20) == b"through"
    finally:
        os.close(reading)
        os.close(writing)


def test_the_end_of_the_peer(ends: Ends) -> None:
    ours, theirs = ends
    assert ours.receive() == []
    theirs.close()
    assert ours.receive() is None


def test_descriptors_nobody_took_are_closed_with_the_channel(ends: Ends) -> None:
    ours, theirs = ends
    reading, writing = os.pipe()
    theirs.sock.sendmsg([FRAMING.pack(Kind.LAST, 0, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _as_bytes(writing))])
    os.close(writing)
    assert ours.receive() == [Frame(Kind.LAST, b"")]
    ours.close()
    os.set_blocking(reading, False)
    assert os.read(reading, 1) == b""  # the last writing end is gone
    os.close(reading)


def _as_bytes(fd: int) -> bytes:
    return fd.to_bytes(4, "little")


class Watched(socket.socket):
    """Counts what was received into memory of the caller's choice."""

    straight_bytes = 0

    def recv_into(self, *args: Any) -> int:
        size = super().recv_into(*args)
        self.straight_bytes += size
        return size


def test_large_ends_are_received_where_they_go() -> None:
    one, plain = socket.socketpair()
    other = Watched(fileno=plain.detach())
    slots = [memoryview(bytearray(size)) for size in (1 << 20, 5)]
    placing = Placing(1, lambda header, head: (1, slots[head[0]]) if header.kind is Kind.PLACED else None)
    theirs = PolledChannel(one, FRAMING, blocking=False)
    ours = PolledChannel(other, FRAMING, blocking=False, placing=placing)
    data = os.urandom(1 << 20)
    reading, writing = os.pipe()
    theirs.send(Kind.PLACED, b"\0", (writing,), tail=memoryview(data))
    theirs.send(Kind.PLACED, b"\1small")
    theirs.send(Kind.LAST)
    frames: list[Frame[Kind]] = []
    while len(frames) < 3:
        theirs.flush()
        frames += ours.receive() or []
    assert [frame.body for frame in frames] == [b"\0", b"\1", b""]
    assert [frame.payload for frame in frames] == [*slots, None]
    assert (bytes(slots[0]), bytes(slots[1])) == (data, b"small")
    assert other.straight_bytes > 0.7 * len(data)  # all but what came together with the header
    for fd in (*frames[0].fds, reading, writing):
        os.close(fd)
    theirs.close()
    assert ours.receive() is None
    ours.close()
