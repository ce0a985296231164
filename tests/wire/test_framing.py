"""Frames of fixed headers: what is refused and with which words, descriptors, and ends of bodies in their places."""

from __future__ import annotations

import pytest

from stoker.core.errors import WireError
from stoker.wire.framing import Frame, FrameDecoder, FrameHeader, Framing, Placing
from tests.wire.protocols import FRAMING, MAX_BYTES, SHORT_NOTE, Kind


def encode(kind: Kind, body: bytes = b"", num_fds: int = 0) -> bytes:
    return FRAMING.pack(kind, len(body), num_fds) + body


@pytest.mark.parametrize("framing", [FRAMING, SHORT_NOTE])
def test_a_header_says_what_was_packed(framing: Framing[Kind]) -> None:
    data = b"before" + framing.pack(Kind.LAST, 77, 5)
    assert framing.header(data, 6) == FrameHeader(Kind.LAST, 77, 5)
    assert framing.limit(Kind.SMALL) == 100


def test_a_foreign_stream_is_refused_at_its_first_bytes() -> None:
    with pytest.raises(WireError, match=r"must begin with 0x1234, got 0x4547; who is it\?"):
        FrameDecoder(FRAMING).feed(b"GET / HTTP/1.1\r\n")


def test_another_protocol_is_refused_with_what_to_do() -> None:
    data = bytearray(encode(Kind.LAST))
    data[2] += 1
    with pytest.raises(WireError, match="must have protocol 7, got 8; run one version"):
        FrameDecoder(FRAMING).feed(bytes(data))


def test_a_length_beyond_that_of_its_kind_is_refused_before_anything_is_stored() -> None:
    with pytest.raises(WireError, match="`SMALL` frame must be at most 100 bytes, got 101"):
        FrameDecoder(FRAMING).feed(FRAMING.pack(Kind.SMALL, 101, 0))
    with pytest.raises(WireError, match=f"`LAST` frame must be at most {MAX_BYTES} bytes"):
        FrameDecoder(SHORT_NOTE).feed(SHORT_NOTE.pack(Kind.LAST, MAX_BYTES + 1, 0))


def test_unknown_kind() -> None:
    data = bytearray(encode(Kind.LAST))
    data[3] = 250
    with pytest.raises(WireError, match="kind 250 is unknown"):
        FrameDecoder(FRAMING).feed(bytes(data))


def test_half_a_header_is_none() -> None:
    with pytest.raises(WireError, match="header must be 16 bytes, got 3"):
        FRAMING.header(b"abc")
    assert FrameDecoder(FRAMING).feed(encode(Kind.LAST)[:15]) == []


def test_a_frame_that_announces_more_descriptors_than_came() -> None:
    with pytest.raises(WireError, match="announces 2 descriptors, 1 arrived"):
        FrameDecoder(FRAMING).feed(encode(Kind.LAST, num_fds=2), (5,))


def test_descriptors_go_to_the_frames_that_announce_them() -> None:
    stream = encode(Kind.LAST, num_fds=1) + encode(Kind.SMALL) + encode(Kind.LAST, num_fds=1)
    frames = FrameDecoder(FRAMING).feed(stream, (5, 6))
    assert [frame.fds for frame in frames] == [(5,), (), (6,)]


def test_descriptors_that_nobody_announced_are_the_callers_to_close() -> None:
    decoder = FrameDecoder(FRAMING)
    decoder.feed(encode(Kind.SMALL), (7,))
    assert decoder.close() == [7]
    assert decoder.close() == []


class TestPlacing:
    """A body of four bytes that name a slot, a skeleton, and a payload for the slot."""

    def decoder(self, *slots: int, skeleton: int = 2) -> FrameDecoder[Kind]:
        self.slots = [memoryview(bytearray(size)) for size in slots]

        def find(header: FrameHeader[Kind], head: bytes) -> tuple[int, memoryview] | None:
            return (4 + skeleton, self.slots[head[0]]) if header.kind is Kind.PLACED else None

        return FrameDecoder(FRAMING, Placing(4, find))

    def test_the_end_of_a_body_is_received_where_it_goes(self) -> None:
        whole = encode(Kind.PLACED, b"\1\0\0\0skHELLO")
        decoder = self.decoder(3, 5)
        assert decoder.feed(whole[:20]) == []
        assert decoder.target is None  # the skeleton has not come
        assert decoder.feed(whole[20:23]) == []
        assert decoder.target is not None
        decoder.target[:2] = b"EL"  # as a socket does
        assert decoder.filled(2) == []
        (frame,) = decoder.feed(b"LO")
        assert frame == Frame(Kind.PLACED, b"\1\0\0\0sk", (), self.slots[1])
        assert bytes(self.slots[1]) == b"HELLO"
        assert bytes(self.slots[0]) == bytes(3)
        assert decoder.target is None
        assert decoder.feed(encode(Kind.LAST, b"next")) == [Frame(Kind.LAST, b"next")]

    @pytest.mark.parametrize("size", [4, 6])
    def test_a_payload_that_does_not_fit_is_refused_before_a_byte_is_written(self, size: int) -> None:
        decoder = self.decoder(size)
        with pytest.raises(WireError, match=f"`PLACED` frame has 5 bytes for a place of {size}"):
            decoder.feed(encode(Kind.PLACED, b"\0\0\0\0skHELLO"))
        assert bytes(self.slots[0]) == bytes(size)

    def test_a_body_that_ends_before_its_payload(self) -> None:
        with pytest.raises(WireError, match="`PLACED` frame has -1 bytes for a place of 5"):
            self.decoder(5).feed(encode(Kind.PLACED, b"\0\0\0\0s"))

    def test_nothing_to_place(self) -> None:
        assert self.decoder(0).feed(encode(Kind.PLACED, b"\0\0\0\0sk")) == [Frame(Kind.PLACED, b"\0\0\0\0sk")]
