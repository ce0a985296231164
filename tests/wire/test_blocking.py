"""Frames for who waits for them: where the buffer ends, silence, and ends of the other side."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from stoker.core.errors import PeerLostError
from stoker.wire.blocking import BUFFER_BYTES, BlockingChannel
from tests.wire.protocols import FRAMING, Kind

Ends = tuple[BlockingChannel[Kind], BlockingChannel[Kind]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = socket.socketpair()
    pair = BlockingChannel(one, FRAMING, 0.05), BlockingChannel(other, FRAMING, 0.05)
    yield pair
    for channel in pair:
        channel.close()


@pytest.mark.parametrize("cut", range(1, FRAMING.num_bytes))
def test_a_header_may_lie_across_the_end_of_the_buffer(ends: Ends, cut: int) -> None:
    ours, theirs = ends
    first, second = bytes(BUFFER_BYTES - FRAMING.num_bytes - cut), b"second"
    theirs.send_parts((FRAMING.pack(Kind.LAST, len(first), 0), first, FRAMING.pack(Kind.SMALL, len(second), 9), second))
    for kind, body in ((Kind.LAST, first), (Kind.SMALL, second)):
        header = ours.header()
        assert header is not None
        assert (header.kind, ours.body(header.length)) == (kind, body)
    assert ours.note == 9
    assert not ours.buffered


def test_fields_of_a_head_and_then_bytes_into_their_place(ends: Ends) -> None:
    ours, theirs = ends
    layout, place = struct.Struct("<II"), bytearray(100_000)
    theirs.send_all(FRAMING.pack(Kind.PLACED, layout.size + len(place), 0) + layout.pack(3, 4))
    header = ours.header()
    assert header is not None
    assert ours.fields(layout) == (3, 4)
    theirs.send_all(b"x" * len(place))
    ours.into(memoryview(place)[: header.length - layout.size])
    assert place == b"x" * len(place)


def test_silence_is_told_from_an_end(ends: Ends) -> None:
    ours, theirs = ends
    with pytest.raises(PeerLostError, match="did not send anything for too long") as silent:
        ours.header()
    assert silent.value.fields["silent"]
    theirs.send_all(FRAMING.pack(Kind.LAST, 5, 0) + b"abc")
    theirs.close()
    header = ours.header()
    assert header is not None
    with pytest.raises(PeerLostError, match="closed the connection within a frame"):
        ours.body(header.length)
    assert ours.header() is None
