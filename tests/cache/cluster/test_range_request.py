"""What a client makes of answers, right and wrong ones: right bytes or none, and one family of errors."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.cluster.client.range_request import CHUNK_BYTES, Agreed, Part, PartState, RangeRequest, parts_of
from stoker.cache.cluster.membership.ring import Member
from stoker.cache.cluster.messages import frames
from stoker.cache.cluster.messages.frames import Blob, Data, Kind, Message, Range, RangeMiss, Reason, Refused
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.cache.cluster.server.serving import pieces_of
from stoker.cache.names import PAGE_BYTES, ObjectName
from stoker.cache.versions import Strength, Version
from stoker.core.errors import ClusterError, PeerLostError, WireError

OBJECT = bytes(range(256)) * 4
VERSION = Version(Strength.ETAG, "v1", len(OBJECT))
RANGES = [(0, 100), (500, 800), (1000, 1024)]


def stream_of(sock: socket.socket, version: Version | None = VERSION) -> tuple[RangeRequest, list[Part]]:
    buffers = [memoryview(bytearray(end - start)) for start, end in RANGES]
    parts = list(parts_of(RANGES, buffers))
    agreed = Agreed(None if version is None else version.digest)
    member = Member(id="w", addresses=("unix:///none",))
    stream = RangeRequest(member, NodeChannel(sock, 5.0), False, ObjectName("s3||", "b/k"), version, parts, agreed)
    stream.ask(1)
    return stream, parts


def data_frame(number: int, offset: int, length: int, digest: int) -> Data:
    """Bytes that are right for the range, as long as they lie in it."""
    start = RANGES[number % len(RANGES)][0] + offset
    return Data(number, offset, digest, len(OBJECT), OBJECT[start : start + length].ljust(length, b"\0"))


DATA = st.builds(
    data_frame, st.integers(0, 3), st.integers(0, 320), st.integers(0, 310),
    st.sampled_from([VERSION.digest, VERSION.digest, VERSION.digest, 7]),
)  # fmt: skip
WHOLE = st.sampled_from(
    [data_frame(number, 0, end - start, VERSION.digest) for number, (start, end) in enumerate(RANGES)]
)
ANSWERS: st.SearchStrategy[Message] = st.one_of(
    WHOLE,
    WHOLE,
    DATA,
    st.builds(RangeMiss, st.integers(0, 3), st.sampled_from(Reason)),
    st.just(Blob(Kind.FETCHING)),
    st.sampled_from([Blob(Kind.PONG), Blob(Kind.RING, b"{}"), Refused(Reason.NOT_MOUNTED, "no")]),
)


@given(st.lists(ANSWERS, max_size=8), st.binary(max_size=60), st.sampled_from([VERSION, None]))
def test_whatever_a_worker_answers_bytes_are_right_or_none(
    answers: list[Message], rest: bytes, version: Version | None
) -> None:
    client, worker = socket.socketpair()
    with worker:
        stream, parts = stream_of(client, version)
        worker.sendall(b"".join(frames.encode(answer) for answer in answers) + rest)
        worker.shutdown(socket.SHUT_WR)
        try:
            while not stream.step():
                pass
        except (ClusterError, WireError):
            pass
        finally:
            stream.channel.close()
    for part, (start, end) in zip(parts, RANGES, strict=True):
        if part.state is PartState.DONE and stream.agreed.digest == VERSION.digest:
            assert bytes(part.target) == OBJECT[start:end]


def test_pieces_in_any_order_make_a_range() -> None:
    client, worker = socket.socketpair()
    with worker:
        stream, parts = stream_of(client)
        digest = VERSION.digest
        answers = [
            data_frame(1, 200, 100, digest), data_frame(0, 0, 100, digest), Blob(Kind.FETCHING),
            data_frame(1, 0, 200, digest), RangeMiss(2, Reason.NOT_FOUND),
        ]  # fmt: skip
        worker.sendall(b"".join(frames.encode(answer) for answer in answers))
        while not stream.step():
            pass
        stream.channel.close()
    assert [part.state for part in parts] == [PartState.DONE, PartState.DONE, PartState.MISSED]
    assert bytes(parts[1].target) == OBJECT[500:800]


def test_a_piece_that_comes_twice_does_not_stand_for_one_that_is_missing() -> None:
    part = Part(0, 0, memoryview(bytearray(100)))
    part.took(0, 50)
    part.took(0, 50)
    assert part.state is PartState.MISSED


def test_a_broken_stream_names_what_broke() -> None:
    client, worker = socket.socketpair()
    stream, _ = stream_of(client)
    worker.sendall(frames.data_head(0, 0, VERSION.digest, len(OBJECT), 100, 1) + b"half")
    worker.shutdown(socket.SHUT_WR)
    with worker, pytest.raises(PeerLostError, match="within a frame"):
        stream.step()
    stream.channel.close()


def test_a_silent_stream_ends_after_the_time_out() -> None:
    client, worker = socket.socketpair()
    with worker:
        stream, _ = stream_of(client)
        stream.channel.bound(0.05, 0.05)
        with pytest.raises(PeerLostError, match="did not send anything for too long"):
            stream.step()
        stream.channel.tick(0.01)
        assert not stream.channel.ask(b"?", b"head", memoryview(bytearray(4)), 0.01)
        stream.channel.close()


@given(st.lists(st.tuples(st.integers(0, 3 * CHUNK_BYTES), st.integers(0, 5 * PAGE_BYTES)), max_size=4))
def test_parts_cover_ranges_and_never_cross_chunks(spans: list[tuple[int, int]]) -> None:
    whole = memoryview(bytearray(5 * PAGE_BYTES))
    ranges = [(start, start + length) for start, length in spans]
    parts = list(parts_of(ranges, [whole[:length] for _, length in spans]))
    for number, (start, end) in enumerate(ranges):
        own = [part for part in parts if part.number == number]
        assert sum(len(part.target) for part in own) == end - start
        for part in own:
            assert part.start // CHUNK_BYTES == (part.start + len(part.target) - 1) // CHUNK_BYTES
            assert start <= part.start < end


def test_buffers_have_the_length_of_their_ranges() -> None:
    with pytest.raises(ValueError, match="must have the 10 bytes"):
        list(parts_of([(0, 10)], [memoryview(bytearray(9))]))
    wide = memoryview(bytearray(16)).cast("I")
    assert len(next(parts_of([(0, 16)], [wide])).target) == 16


@given(st.integers(0, 10 * PAGE_BYTES), st.integers(0, 3 * PAGE_BYTES))
def test_pieces_tile_a_range_page_by_page(start: int, length: int) -> None:
    position = start
    for piece in pieces_of(7, Range(start, length)):
        assert piece.number == 7
        assert piece.offset == position - start
        assert piece.page * PAGE_BYTES + piece.start == position
        assert 0 <= piece.start < PAGE_BYTES
        assert piece.start + piece.length <= PAGE_BYTES
        position += piece.length
    assert position == start + length
