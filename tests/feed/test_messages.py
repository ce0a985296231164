"""Messages of data workers: what is packed is unpacked, and no bytes bring anything but messages or WireError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import WireError
from stoker.feed.transport import messages
from stoker.feed.transport.messages import LeaseFlag, LeaseHeader, Place, ReadyHeader

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
SECONDS = st.floats(0, 1e9, allow_nan=False)


def header(place: Place = Place.SLOT, payload_bytes: int = 0, skeleton_bytes: int = 0) -> ReadyHeader:
    return ReadyHeader(3, 4, 5, 6, place, payload_bytes, skeleton_bytes, 0.1, 0.2, 0.3, 9.0, 1 << 20, 77)


class TestLease:
    @given(U64, U32, I32, I32, st.integers(0, 3), st.binary(max_size=50))
    def test_round_trip(self, seq: int, generation: int, ring: int, slot: int, flags: int, body: bytes) -> None:
        sent = LeaseHeader(seq, generation, ring, slot, LeaseFlag(flags))
        got, rest = messages.unpack_lease(sent.pack(body))
        assert got == sent
        assert bytes(rest) == body

    @given(st.binary(max_size=60))
    def test_arbitrary_bytes(self, body: bytes) -> None:
        try:
            messages.unpack_lease(body)
        except WireError:
            return


class TestReady:
    @given(U64, U32, I32, I32, st.binary(max_size=40), SECONDS, U64, U32)
    def test_round_trip(
        self, seq: int, generation: int, ring: int, slot: int, skeleton: bytes, took_s: float, private: int, check: int
    ) -> None:
        sent = ReadyHeader(
            seq, generation, ring, slot, Place.SLOT, 10, len(skeleton), took_s, took_s, took_s, took_s, private, check
        )
        got, rest = messages.unpack_ready(sent.pack() + skeleton)
        assert got == sent
        assert bytes(rest) == skeleton

    @given(st.binary(max_size=200))
    def test_arbitrary_bytes(self, body: bytes) -> None:
        try:
            messages.unpack_ready(body)
        except WireError:
            return

    @given(st.integers(0, messages.READY_BYTES - 1), st.integers(0, 255))
    def test_one_wrong_byte(self, at: int, value: int) -> None:
        body = bytearray(header(Place.INLINE, 4, 3).pack() + b"skelpay")
        body[at] = value
        try:
            got, rest = messages.unpack_ready(bytes(body))
        except WireError:
            return
        inline = got.payload_bytes if got.place is Place.INLINE else 0
        assert len(rest) == got.skeleton_bytes + inline

    @given(st.integers(0, messages.READY_BYTES + 6))
    def test_truncated(self, length: int) -> None:
        body = header(Place.INLINE, 4, 3).pack() + b"skelpay"
        with pytest.raises(WireError):
            messages.unpack_ready(body[:length])

    def test_a_header_that_lies_about_what_follows(self) -> None:
        with pytest.raises(WireError, match="item 3 holds 2 bytes, its header says 5"):
            messages.unpack_ready(header(skeleton_bytes=5).pack() + b"ab")


def test_frames_begin_as_they_always_did() -> None:
    assert messages.FRAMING.pack(messages.MessageKind.READY, 5, 2).hex() == "54530210050000000000000002000000"
