"""Frames: what is written is read, and any other bytes give one kind of error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.cluster.messages import frames
from stoker.cache.cluster.messages.frames import (
    HEADER_BYTES,
    Blob,
    Challenge,
    Data,
    Flag,
    Hello,
    Hot,
    Kind,
    Message,
    Object,
    Proof,
    Range,
    RangeMiss,
    Read,
    Reason,
    Refused,
    Stat,
    Welcome,
)
from stoker.cache.versions import Strength, Version
from stoker.core.errors import WireError

TEXT = st.text(max_size=40)
NAME = st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))
VERSIONS = st.builds(Version, st.sampled_from(Strength), NAME, st.integers(0, 2**63))
RANGES = st.lists(st.builds(Range, st.integers(0, 2**62), st.integers(0, 1 << 20)), max_size=8).map(tuple)
FRAMES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, TEXT, TEXT, TEXT),
    st.builds(Challenge, st.binary(min_size=32, max_size=32), st.booleans()),
    st.builds(Proof, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32)),
    st.builds(Welcome, st.binary(min_size=32, max_size=32), TEXT, st.integers(0, 10**6), st.booleans()),
    st.builds(Refused, st.sampled_from(Reason), TEXT),
    st.builds(
        Read,
        NAME,
        NAME,
        st.none() | VERSIONS,
        RANGES,
        st.sampled_from([Flag.NONE, Flag.ONLY_IF_CACHED, Flag.COPY, Flag.COPY | Flag.ONLY_IF_CACHED]),
    ),
    st.builds(Data, *[st.integers(0, 2**32 - 1)] * 2, *[st.integers(0, 2**64 - 1)] * 2, st.binary(max_size=100)),
    st.builds(RangeMiss, st.integers(0, 2**32 - 1), st.sampled_from(Reason)),
    st.builds(Hot, st.integers(0, 2**32 - 1), st.integers(0, 255)),
    st.builds(Stat, NAME, NAME, st.integers(0, 2**40)),
    st.builds(Object, VERSIONS, st.floats(0, 1e12), st.binary(max_size=100)),
    st.builds(Blob, st.sampled_from([Kind.RING, Kind.STATUS]), st.binary(max_size=100)),
    st.builds(
        Blob,
        st.sampled_from([Kind.PING, Kind.PONG, Kind.ASK_RING, Kind.ASK_STATUS, Kind.FETCHING]),
        st.just(b""),
    ),
)


@given(FRAMES, st.integers(0, 2**64 - 1))
def test_what_is_written_is_read(frame: Message, epoch: int) -> None:
    data = frames.encode(frame, epoch)
    header = frames.FRAMING.header(data)
    assert header.length == len(data) - HEADER_BYTES
    assert header.note == epoch
    assert frames.decode_body(header.kind, data[HEADER_BYTES:]) == frame


@given(st.binary(max_size=200))
def test_any_bytes_give_a_header_or_a_wire_error(data: bytes) -> None:
    try:
        header = frames.FRAMING.header(data)
    except WireError:
        return
    assert header.length <= frames.DATA_BYTES + frames.MAX_PAYLOAD_BYTES


@given(st.sampled_from(Kind), st.binary(max_size=300))
def test_any_body_gives_a_frame_or_a_wire_error(kind: Kind, body: bytes) -> None:
    try:
        frame = frames.decode_body(kind, body)
    except WireError:
        return
    again = frames.encode(frame)
    assert frames.decode_body(kind, again[HEADER_BYTES:]) == frame


@given(FRAMES, st.data())
def test_damaged_frames_give_a_frame_or_a_wire_error(frame: Message, data: st.DataObject) -> None:
    encoded = bytearray(frames.encode(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    del encoded[data.draw(st.integers(0, len(encoded))) :]
    try:
        header = frames.FRAMING.header(encoded)
        frames.decode_body(header.kind, bytes(encoded[HEADER_BYTES:]))
    except WireError:
        return


def test_a_head_and_its_payload_are_a_data_frame() -> None:
    head = frames.data_head(3, 4096, 77, 10**9, 5, epoch=9)
    assert head + b"hello" == frames.encode(Data(3, 4096, 77, 10**9, b"hello"), epoch=9)


@pytest.mark.parametrize(
    "frame",
    [
        Read("m", "p" * 5000, None, ()),
        Read("m" * 2000, "p", None, ()),
        Read("m", "p", None, (Range(0, 1),) * 5000),
        Blob(Kind.RING, b"x" * (frames.MAX_RING_BYTES + 1)),
    ],
)
def test_frames_that_no_receiver_takes_are_not_written(frame: Message) -> None:
    with pytest.raises(ValueError, match=r"must be at most|are bounded"):
        frames.encode(frame)


@pytest.mark.parametrize(
    "ranges",
    [(Range(2**63, 1),), (Range(0, frames.MAX_RANGE_BYTES), Range(0, 1))],
)
def test_requests_for_too_much_are_malformed(ranges: tuple[Range, ...]) -> None:
    data = frames.encode(Read("m", "p", None, ranges))
    with pytest.raises(WireError, match="must ask for at most"):
        frames.decode_body(Kind.READ, data[HEADER_BYTES:])


def test_lengths_are_bounded_before_anything_is_received() -> None:
    huge = frames.FRAMING.pack(Kind.READ, 1 << 31, 0)
    with pytest.raises(WireError, match="at most"):
        frames.FRAMING.header(huge)
    with pytest.raises(WireError, match="cache worker's port"):
        frames.FRAMING.header(b"HTTP/1.1 400 Bad Request")
