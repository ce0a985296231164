"""The wire: every message survives any splitting of the bytes, and no bytes bring anything but frames or WireError."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import WireError
from stoker.feed import wire
from stoker.feed.wire import Channel, Decoder, Frame, Kind, LeaseFlag, LeaseHeader, Place, ReadyHeader

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
SECONDS = st.floats(0, 1e9, allow_nan=False)
KINDS = st.sampled_from(Kind)
FRAMES = st.lists(st.tuples(KINDS, st.binary(max_size=200)), max_size=6)


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return (data[start:end] for start, end in itertools.pairwise(edges))


def header(place: Place = Place.SLOT, payload_bytes: int = 0, skeleton_bytes: int = 0) -> ReadyHeader:
    return ReadyHeader(3, 4, 5, 6, place, payload_bytes, skeleton_bytes, 0.1, 0.2, 0.3, 9.0, 1 << 20, 77)


class TestDecoder:
    @given(FRAMES, st.lists(st.integers(0, 1500), max_size=8))
    def test_frames_survive_any_splitting(self, frames: list[tuple[Kind, bytes]], places: list[int]) -> None:
        stream = b"".join(wire.encode(kind, body) for kind, body in frames)
        decoder = Decoder()
        got = [frame for piece in cut(stream, places) for frame in decoder.feed(piece)]
        assert got == [Frame(kind, body) for kind, body in frames]
        assert decoder.feed(wire.encode(Kind.SURVEY, b"next")) == [Frame(Kind.SURVEY, b"next")]  # nothing is left over

    @given(st.lists(st.binary(max_size=80), max_size=8))
    def test_arbitrary_bytes_bring_frames_or_a_wire_error(self, pieces: list[bytes]) -> None:
        decoder = Decoder()
        try:
            for piece in pieces:
                assert all(isinstance(frame.kind, Kind) for frame in decoder.feed(piece))
        except WireError:
            return

    @given(KINDS, st.binary(max_size=60), st.integers(0, 10_000), st.integers(0, 255))
    def test_one_wrong_byte_brings_a_frame_or_a_wire_error(self, kind: Kind, body: bytes, at: int, value: int) -> None:
        data = bytearray(wire.encode(kind, body))
        data[at % len(data)] = value
        try:
            Decoder().feed(bytes(data))
        except WireError:
            return

    @given(KINDS, st.binary(max_size=60), st.data())
    def test_half_a_frame_waits_for_the_rest(self, kind: Kind, body: bytes, data: st.DataObject) -> None:
        whole = wire.encode(kind, body)
        length = data.draw(st.integers(0, len(whole) - 1))
        decoder = Decoder()
        assert decoder.feed(whole[:length]) == []
        assert decoder.feed(whole[length:]) == [Frame(kind, body)]

    def test_a_foreign_stream_is_refused_at_its_first_bytes(self) -> None:
        with pytest.raises(WireError, match="must begin with 0x5354, got 0x4547"):
            Decoder().feed(b"GET / HTTP/1.1\r\n")

    def test_another_version_says_that_all_must_run_one_stoker(self) -> None:
        data = bytearray(wire.encode(Kind.STOP))
        data[2] += 1
        with pytest.raises(WireError, match="all processes must run one stoker"):
            Decoder().feed(bytes(data))

    def test_an_absurd_length_is_refused_before_anything_is_stored(self) -> None:
        data = bytearray(wire.encode(Kind.READY))
        data[8:16] = (wire.MAX_BODY_BYTES + 1).to_bytes(8, "little")
        with pytest.raises(WireError, match="length must be at most"):
            Decoder().feed(bytes(data))

    def test_unknown_kind(self) -> None:
        data = bytearray(wire.encode(Kind.READY))
        data[3] = 250
        with pytest.raises(WireError, match="kind 250 is unknown"):
            Decoder().feed(bytes(data))

    def test_a_frame_that_announces_more_descriptors_than_came(self) -> None:
        with pytest.raises(WireError, match="announces 2 descriptors, 1 came"):
            Decoder().feed(wire.encode(Kind.RING, num_fds=2), (5,))

    def test_descriptors_go_to_the_frames_that_announce_them(self) -> None:
        stream = wire.encode(Kind.RING, num_fds=1) + wire.encode(Kind.STOP) + wire.encode(Kind.RING, num_fds=1)
        frames = Decoder().feed(stream, (5, 6))
        assert [frame.fds for frame in frames] == [(5,), (), (6,)]

    def test_descriptors_that_nobody_announced_are_the_callers_to_close(self) -> None:
        decoder = Decoder()
        decoder.feed(wire.encode(Kind.STOP), (7,))
        assert decoder.close() == [7]
        assert decoder.close() == []


class TestLease:
    @given(U64, U32, I32, I32, st.integers(0, 3), st.binary(max_size=50))
    def test_round_trip(self, seq: int, generation: int, ring: int, slot: int, flags: int, body: bytes) -> None:
        sent = LeaseHeader(seq, generation, ring, slot, LeaseFlag(flags))
        got, rest = wire.unpack_lease(sent.pack(body))
        assert got == sent
        assert bytes(rest) == body

    @given(st.binary(max_size=60))
    def test_arbitrary_bytes(self, body: bytes) -> None:
        try:
            wire.unpack_lease(body)
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
        got, rest = wire.unpack_ready(sent.pack() + skeleton)
        assert got == sent
        assert bytes(rest) == skeleton

    @given(st.binary(max_size=200))
    def test_arbitrary_bytes(self, body: bytes) -> None:
        try:
            wire.unpack_ready(body)
        except WireError:
            return

    @given(st.integers(0, wire.READY_BYTES - 1), st.integers(0, 255))
    def test_one_wrong_byte(self, at: int, value: int) -> None:
        body = bytearray(header(Place.INLINE, 4, 3).pack() + b"skelpay")
        body[at] = value
        try:
            got, rest = wire.unpack_ready(bytes(body))
        except WireError:
            return
        inline = got.payload_bytes if got.place is Place.INLINE else 0
        assert len(rest) == got.skeleton_bytes + inline

    @given(st.integers(0, wire.READY_BYTES + 6))
    def test_truncated(self, length: int) -> None:
        body = header(Place.INLINE, 4, 3).pack() + b"skelpay"
        with pytest.raises(WireError):
            wire.unpack_ready(body[:length])

    def test_a_header_that_lies_about_what_follows(self) -> None:
        with pytest.raises(WireError, match="item 3 holds 2 bytes, its header says 5"):
            wire.unpack_ready(header(skeleton_bytes=5).pack() + b"ab")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    one, other = socket.socketpair()
    pair = Channel(one, blocking=False), Channel(other, blocking=True)
    yield pair
    for channel in pair:
        channel.close()


class TestChannel:
    def test_a_full_peer_never_blocks_the_training_process(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        body = os.urandom(8 << 20)
        ours.send(Kind.LEASE, body)
        ours.send(Kind.STOP)
        assert ours.unsent
        frames: list[Frame] = []
        while len(frames) < 2:
            ours.flush()
            frames += theirs.receive() or []
        assert not ours.unsent
        assert frames == [Frame(Kind.LEASE, body), Frame(Kind.STOP, b"")]

    def test_a_held_frame_goes_with_the_next_or_a_flush(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        reading, writing = os.pipe()
        ours.hold(Kind.ITERATION, b"first")
        assert ours.unsent
        assert theirs.receive(wait=False) == []
        ours.send(Kind.RING, b"second", (writing,))
        os.close(writing)
        held, ring = theirs.receive() or []
        assert held == Frame(Kind.ITERATION, b"first")
        assert (ring.kind, ring.body, len(ring.fds)) == (Kind.RING, b"second", 1)
        for fd in (*ring.fds, reading):
            os.close(fd)
        ours.hold(Kind.ITERATION, b"third")
        ours.flush()
        assert not ours.unsent
        assert theirs.receive() == [Frame(Kind.ITERATION, b"third")]

    def test_a_tail_continues_the_body(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        ours.send(Kind.READY, b"head", tail=memoryview(b"tail"))
        frames: list[Frame] = []
        while not frames:
            frames += theirs.receive() or []
        assert frames == [Frame(Kind.READY, b"headtail")]

    def test_descriptors_arrive_and_work(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        reading, writing = os.pipe()
        try:
            ours.send(Kind.RING, b"", (writing,))
            (frame,) = theirs.receive() or []
            (received,) = frame.fds
            os.write(received, b"through")
            os.close(received)
            assert os.read(reading, 20) == b"through"
        finally:
            os.close(reading)
            os.close(writing)

    def test_the_end_of_the_peer(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        assert ours.receive() == []
        theirs.close()
        assert ours.receive() is None

    def test_descriptors_nobody_took_are_closed_with_the_channel(self, ends: tuple[Channel, Channel]) -> None:
        ours, theirs = ends
        reading, writing = os.pipe()
        theirs.sock.sendmsg([wire.encode(Kind.STOP)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _as_bytes(writing))])
        os.close(writing)
        assert ours.receive() == [Frame(Kind.STOP, b"")]
        ours.close()
        os.set_blocking(reading, False)
        assert os.read(reading, 1) == b""  # the last writing end is gone
        os.close(reading)


def _as_bytes(fd: int) -> bytes:
    return fd.to_bytes(4, "little")
