"""Whatever bytes come, in whatever pieces, over whichever connection: frames and messages, or one kind of error.

Every protocol that stoker speaks goes through the same properties: a new one is added to ``SPOKEN``.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.remote import messages as hosts
from stoker.cache.cluster.messages import frames as nodes
from stoker.core.errors import PeerLostError, WireError
from stoker.feed.transport import messages as workers
from stoker.serve.engine import ANY, Interface, TensorSpec
from stoker.serve.processes import messages as engines
from stoker.train.ring import links
from stoker.train.ring.watching import watch
from stoker.train.state import messages as state
from stoker.wire import greeting
from stoker.wire.blocking import BlockingChannel
from stoker.wire.framing import Frame, FrameDecoder, FrameHeader, Framing, Placing
from stoker.wire.polled import PolledChannel
from tests.cache.cluster.recorded import RECORDED
from tests.wire import protocols


class Spoken(NamedTuple):
    """A protocol: how its frames begin, frames as they are sent, and what is made of the body of each kind."""

    framing: Framing[Any]
    samples: tuple[bytes, ...]
    decode: Callable[[Any, bytes], object]


def _worker_message(kind: workers.MessageKind, body: bytes) -> object:
    match kind:
        case (
            workers.MessageKind.LEASE
            | workers.MessageKind.RETURNED
            | workers.MessageKind.ENDED
            | workers.MessageKind.FAILED
        ):
            return workers.unpack_lease(body)
        case workers.MessageKind.READY:
            return workers.unpack_ready(body)
        case _:
            return body  # pickled, by a process of the same user


def _worker_samples() -> Iterator[bytes]:
    lease = workers.LeaseHeader(3, 4, 5, 6, workers.LeaseFlag.DIGEST).pack(b"indices")
    ready = workers.ReadyHeader(3, 4, 5, 6, workers.Place.INLINE, 4, 3, 0.1, 0.2, 0.3, 9.0, 1 << 20, 77).pack()
    for kind, body in (
        (workers.MessageKind.LEASE, lease), (workers.MessageKind.READY, ready + b"skelpay"),
        (workers.MessageKind.STOP, b""), (workers.MessageKind.ITERATION, b"pickled" * 50),
    ):  # fmt: skip
        yield workers.FRAMING.pack(kind, len(body), 0) + body


def _host_message(kind: hosts.RemoteKind, body: bytes) -> object:
    kinds = hosts.RemoteKind
    structs: dict[hosts.RemoteKind, Any] = {
        kinds.HERE: hosts.Caller, kinds.PROGRAM: hosts.ProgramAhead, kinds.OFFER: hosts.HostOffer,
        kinds.ADMITTED: hosts.Admission, kinds.FAULT: hosts.Fault, kinds.GONE: hosts.AwayEnd,
        kinds.PROGRESS: hosts.HostProgress,
    }  # fmt: skip
    if kind in structs:
        return hosts.read(body, structs[kind])
    match kind:
        case kinds.SPAWN:
            return hosts.unpack_spawn(body)
        case kinds.END:
            return hosts.unpack_number(body)
        case kinds.TELL | kinds.SAID:
            return hosts.open_envelope(body)
        case kinds.BATCH:
            return hosts.unpack_batch(body)
        case _:
            return body


AHEAD = hosts.ProgramAhead(
    100, bytes(32), b"sample", 60.0, hosts.ProgramSetting(environ={"DATA": "here"}, packages=("one",))
)


def _host_samples() -> Iterator[bytes]:
    ready = workers.ReadyHeader(3, 4, -1, -1, workers.Place.SLOT, 4, 3, 0.1, 0.2, 0.3, 9.0, 0, 0)
    for kind, body in (
        (hosts.RemoteKind.HERE, msgspec.msgpack.encode(hosts.Caller("1", "cpython 3.11", "x86_64"))),
        (hosts.RemoteKind.BATCH, hosts.pack_batch(7, ready, b"ske") + b"load"),
        (hosts.RemoteKind.SPAWN, hosts.pack_spawn(7, 1)),
        (hosts.RemoteKind.TELL, hosts.envelope(7, workers.MessageKind.LEASE, b"work")),
        (hosts.RemoteKind.GONE, msgspec.msgpack.encode(hosts.AwayEnd(7, 4711, "killed by signal: SIGKILL", 3, 1))),
        (hosts.RemoteKind.PROGRAM, msgspec.msgpack.encode(AHEAD)),
        (hosts.RemoteKind.PROGRESS, msgspec.msgpack.encode(hosts.HostProgress("pip installs one==1.0"))),
    ):
        yield hosts.FRAMING.pack(kind, len(body), 0) + body


def _greeting(kind: greeting.GreetingKind, body: bytes) -> object:
    opens = kind in (greeting.GreetingKind.HELLO, greeting.GreetingKind.CHALLENGE)
    return greeting.read_opening(body) if opens else body


def _greeting_samples() -> Iterator[bytes]:
    opening = msgspec.msgpack.encode(greeting.Opening("default", bytes(32), b"certificate"))
    for kind, body in (
        (greeting.GreetingKind.HELLO, opening), (greeting.GreetingKind.CHALLENGE, opening),
        (greeting.GreetingKind.PROOF, bytes(32)), (greeting.GreetingKind.REFUSED, b"the secret differs"),
    ):  # fmt: skip
        yield greeting.FRAMING.pack(kind, len(body), 0) + body


def _state_samples() -> Iterator[bytes]:
    yield state.pack(state.PartKind.ASK, state.PartQuestion("head.1.weight:exp_avg", 7))
    yield state.pack(state.PartKind.STANDING, state.RankStanding(8, 7, True, False))
    yield state.refusal("it has no `head`")
    yield state.pack(state.PartKind.PART, state.PartHeader(4096))


def _state_message(kind: state.PartKind, body: bytes) -> object:
    records = {
        state.PartKind.ASK: state.PartQuestion, state.PartKind.PART: state.PartHeader,
        state.PartKind.STANDING: state.RankStanding,
    }  # fmt: skip
    return state.read(body, records[kind]) if kind in records else body


def _link_samples() -> Iterator[bytes]:
    body = msgspec.msgpack.encode(links.PassOpening(1, "sum", "head", "float32", 10, 4))
    yield links.FRAMING.pack(links.LinkKind.OPENING, len(body), 0) + body


def _watch_message(kind: watch.WatchKind, body: bytes) -> object:
    readers: dict[watch.WatchKind, Callable[[bytes], object]] = {
        watch.WatchKind.BEAT: watch.read_beat, watch.WatchKind.FAULT: watch.read_news,
    }  # fmt: skip
    return readers.get(kind, bytes)(body)


def _watch_samples() -> Iterator[bytes]:
    news = msgspec.msgpack.encode(watch.FaultNews(3, "has left"))
    for kind, body in (
        (watch.WatchKind.BEAT, bytes(8)), (watch.WatchKind.FAULT, news), (watch.WatchKind.BYE, b""),
        (watch.WatchKind.WHO, b""),
    ):  # fmt: skip
        yield watch.FRAMING.pack(kind, len(body), 0) + body


def _engine_samples() -> Iterator[bytes]:
    kinds = engines.EngineMessage
    spec = TensorSpec("x", np.dtype("<f4"), (ANY, 3))
    for kind, body in (
        (kinds.LOADED, b""),
        (kinds.FORK, engines.pack(engines.Birth(1, 1 << 20, 1 << 19, 32, 5.0))),
        (kinds.READY, engines.warm(Interface((spec,), (spec,), "onnxruntime", {"cycles": 3}), [(1, 0.1), (2, 0.2)])),
        (kinds.RUN, engines.pack(engines.BatchRun(7, 1, [0], [(2, 3)], 24))),
        (kinds.DONE, engines.pack(engines.BatchDone(7, 0.1, [64], [(2, 3)]))),
        (kinds.BROKEN, engines.pack(engines.Failure("ValueError: no", 7))),
    ):
        yield engines.FRAMING.pack(kind, len(body), 0) + body


def _engine_message(kind: engines.EngineMessage, body: bytes) -> object:
    kinds = engines.EngineMessage
    structs: dict[engines.EngineMessage, Any] = {
        kinds.FAILED: engines.Failure, kinds.FORK: engines.Birth, kinds.FORKED: engines.Birth,
        kinds.RUN: engines.BatchRun, kinds.DONE: engines.BatchDone, kinds.BROKEN: engines.Failure,
    }  # fmt: skip
    if kind is kinds.READY:
        return engines.ready_of(body)
    return engines.unpack(body, structs[kind]) if kind in structs else body


SPOKEN = {
    "engines": Spoken(engines.FRAMING, tuple(_engine_samples()), _engine_message),
    "parts of a state": Spoken(state.FRAMING, tuple(_state_samples()), _state_message),
    "links between ranks": Spoken(links.FRAMING, tuple(_link_samples()), lambda _, body: links.read_pass_opening(body)),
    "watches of ranks": Spoken(watch.FRAMING, tuple(_watch_samples()), _watch_message),
    "hosts": Spoken(hosts.FRAMING, tuple(_host_samples()), _host_message),
    "greetings": Spoken(greeting.FRAMING, tuple(_greeting_samples()), _greeting),
    "nodes": Spoken(nodes.FRAMING, tuple(bytes.fromhex(text) for text, _ in RECORDED), nodes.decode_body),
    "workers": Spoken(workers.FRAMING, tuple(_worker_samples()), _worker_message),
}
every = pytest.mark.parametrize("spoken", SPOKEN.values(), ids=SPOKEN)
PLACES = st.lists(st.integers(0, 3000), max_size=8)
DAMAGE = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=4)
HEAD = struct.Struct("<BH")
PLACED = st.lists(
    st.tuples(st.integers(0, 9), st.binary(max_size=20), st.binary(min_size=1, max_size=300)),
    max_size=4,
    unique_by=lambda one: one[0],
)
"""Bodies: a slot, a skeleton behind both numbers, and what goes into the slot."""
CHOICES = st.lists(st.integers(0, 100), min_size=1, max_size=5)


def cut(data: bytes, places: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return (data[start:end] for start, end in itertools.pairwise(edges))


def chosen(spoken: Spoken, choices: list[int], damage: list[tuple[int, int]] = []) -> bytes:  # noqa: B006 (not changed)
    stream = bytearray(b"".join(spoken.samples[choice % len(spoken.samples)] for choice in choices))
    for at, value in damage:
        stream[at % len(stream)] = value
    return bytes(stream)


def frames_of(spoken: Spoken, stream: bytes) -> list[tuple[FrameHeader[Any], bytes]]:
    """The frames of a whole stream, taken apart by hand."""
    found, at = [], 0
    while at < len(stream):
        header = spoken.framing.header(stream, at)
        at += spoken.framing.num_bytes
        found.append((header, stream[at : at + header.length]))
        at += header.length
    return found


def understood(spoken: Spoken, kind: Any, body: bytes) -> bool:
    """Whether a body is a message; nothing but :class:`WireError` may come of one that is not."""
    try:
        spoken.decode(kind, body)
    except WireError:
        return False
    return True


def received(channel: BlockingChannel[Any]) -> list[tuple[FrameHeader[Any], bytes]]:
    """All frames until the other side has closed, or breaks off."""
    found = []
    try:
        while (header := channel.header()) is not None and header.length < 1 << 24:
            found.append((header, channel.body(header.length)))
    except (WireError, PeerLostError):
        pass
    return found


class TestHeadersAndBodies:
    @every
    @given(st.binary(max_size=40))
    def test_any_bytes_give_a_header_within_its_limit_or_a_wire_error(self, spoken: Spoken, data: bytes) -> None:
        for start in (data, spoken.samples[0][:4] + data):  # the second passes the magic number
            try:
                header = spoken.framing.header(start)
            except WireError:
                continue
            assert header.length <= spoken.framing.limit(header.kind)

    @every
    @given(CHOICES, DAMAGE, st.integers(0, 3000))
    def test_damaged_and_cut_bodies_give_a_message_or_a_wire_error(
        self, spoken: Spoken, choices: list[int], damage: list[tuple[int, int]], length: int
    ) -> None:
        (header, body), *_ = frames_of(spoken, chosen(spoken, choices))
        assert understood(spoken, header.kind, body)
        damaged = bytearray(body or b"x")
        for at, value in damage:
            damaged[at % len(damaged)] = value
        understood(spoken, header.kind, bytes(damaged))
        understood(spoken, header.kind, body[:length])

    @every
    @given(st.integers(0, 100), st.binary(max_size=300))
    def test_any_body_of_any_kind_gives_a_message_or_a_wire_error(
        self, spoken: Spoken, choice: int, body: bytes
    ) -> None:
        header = spoken.framing.header(spoken.samples[choice % len(spoken.samples)])
        understood(spoken, header.kind, body)


class TestDecoder:
    """Pieces as a poll brings them."""

    @given(CHOICES, PLACES)
    def test_frames_survive_any_splitting(self, choices: list[int], places: list[int]) -> None:
        spoken = SPOKEN["workers"]
        stream = chosen(spoken, choices)
        decoder = FrameDecoder(spoken.framing)
        got = [frame for piece in cut(stream, places) for frame in decoder.feed(piece)]
        assert got == [Frame(header.kind, body) for header, body in frames_of(spoken, stream)]
        assert len(decoder.feed(spoken.samples[0])) == 1  # nothing is left over

    @every
    @given(CHOICES, DAMAGE, PLACES, st.binary(max_size=40))
    def test_damage_brings_frames_or_a_wire_error(
        self, spoken: Spoken, choices: list[int], damage: list[tuple[int, int]], places: list[int], more: bytes
    ) -> None:
        decoder = FrameDecoder(spoken.framing)
        try:
            for piece in cut(chosen(spoken, choices, damage) + more, places):
                for frame in decoder.feed(piece):
                    understood(spoken, frame.kind, frame.body)
        except WireError:
            return

    @given(PLACED, st.integers(1, 300), PLACES, st.booleans())
    def test_placed_ends_land_in_their_places_whatever_the_pieces(
        self, sent: list[tuple[int, bytes, bytes]], room: int, places: list[int], straight: bool
    ) -> None:
        slots = [bytearray(b"\xaa" * (room + 8)) for _ in range(10)]

        def find(header: FrameHeader[protocols.Kind], start: bytes) -> tuple[int, memoryview] | None:
            slot, skeleton = HEAD.unpack_from(start)
            size = header.length - HEAD.size - skeleton
            if size > room:
                raise WireError("`payload` does not fit")
            return HEAD.size + skeleton, memoryview(slots[slot])[:size]

        bodies = [(HEAD.pack(slot, len(skeleton)) + skeleton, payload) for slot, skeleton, payload in sent]
        heads = (protocols.FRAMING.pack(protocols.Kind.PLACED, len(body) + len(payload), 0) for body, payload in bodies)
        stream = b"".join(head + body + payload for head, (body, payload) in zip(heads, bodies, strict=True))
        fitting = list(itertools.takewhile(lambda one: len(one[1]) <= room, bodies))
        decoder = FrameDecoder(protocols.FRAMING, Placing(HEAD.size, find))
        got: list[tuple[bytes, bytes]] = []
        try:
            for piece in cut(stream, places):
                frames = list(_straight(decoder, piece)) if straight else decoder.feed(piece)
                got += [(frame.body, bytes(frame.payload or b"")) for frame in frames]
        except WireError:
            assert len(fitting) < len(bodies)
            assert got == fitting[: len(got)]
        else:
            assert got == fitting == bodies
        for slot in slots:
            assert slot[room:] == b"\xaa" * 8  # never a byte beyond the place

    @given(PLACES, DAMAGE)
    def test_damage_never_writes_beyond_a_place(self, places: list[int], damage: list[tuple[int, int]]) -> None:
        slot = bytearray(b"\xaa" * 108)
        placing: Placing[protocols.Kind] = Placing(1, lambda header, head: (head[0], memoryview(slot)[:100]))
        stream = bytearray((protocols.FRAMING.pack(protocols.Kind.PLACED, 101, 0) + b"\1" + bytes(100)) * 3)
        for at, value in damage:
            stream[at % len(stream)] = value
        decoder = FrameDecoder(protocols.FRAMING, placing)
        try:
            for piece in cut(bytes(stream), places):
                decoder.feed(piece)
        except (WireError, IndexError):  # the second is ours: an empty body has no first byte
            pass
        assert slot[100:] == b"\xaa" * 8


def _straight(decoder: FrameDecoder[protocols.Kind], piece: bytes) -> Iterator[Frame[protocols.Kind]]:
    """As a socket receives: into the place where there is one."""
    while piece:
        target = decoder.target
        taken = len(piece) if target is None else min(len(target), len(piece))
        if target is None:
            yield from decoder.feed(piece)
        else:
            target[:taken] = piece[:taken]
            yield from decoder.filled(taken)
        piece = piece[taken:]


class TestConnections:
    """The same over sockets, by who polls and by who waits."""

    @every
    @given(CHOICES, st.integers(0, 3000), st.booleans())
    def test_what_has_come_is_taken_and_the_rest_waited_for(
        self, spoken: Spoken, choices: list[int], first: int, large: bool
    ) -> None:
        stream = chosen(spoken, choices) * (40 if large else 1)  # more than is received at once
        first *= 5 if large else 1
        ours, theirs = socket.socketpair()
        channel = BlockingChannel(ours, spoken.framing, 5.0)
        got: list[tuple[FrameHeader[Any], bytes]] = []
        theirs.sendall(stream[:first])
        channel.arrived()
        while (whole := channel.whole_frame()) is not None:
            got.append((whole[0], bytes(whole[1])))
            channel.skip(spoken.framing.num_bytes + whole[0].length)
        theirs.sendall(stream[first:])
        theirs.close()
        assert got + received(channel) == frames_of(spoken, stream)
        channel.close()

    @every
    @given(CHOICES, DAMAGE, st.binary(max_size=40), st.booleans())
    def test_damage_ends_a_connection_and_nothing_else(
        self, spoken: Spoken, choices: list[int], damage: list[tuple[int, int]], more: bytes, polled: bool
    ) -> None:
        ours, theirs = socket.socketpair()
        theirs.sendall(chosen(spoken, choices, damage) + more)
        theirs.close()
        if polled:
            channel = PolledChannel(ours, spoken.framing, blocking=False)
            with contextlib.suppress(WireError):
                while (frames := channel.receive()) is not None:
                    for frame in frames:
                        understood(spoken, frame.kind, frame.body)
        else:
            channel = BlockingChannel(ours, spoken.framing, 5.0)
            for header, body in received(channel):
                understood(spoken, header.kind, body)
        channel.close()
