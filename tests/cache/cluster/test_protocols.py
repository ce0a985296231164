"""Versions of stoker that differ: what the first release sent is read for ever, and both agree on how to go on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.cache.cluster.messages import frames
from stoker.cache.cluster.messages.frames import HEADER_BYTES, Hello, Message, Proof, Welcome
from stoker.cache.cluster.messages.handshake import Identity, greet, receive
from stoker.cache.cluster.messages.node_channel import NodeChannel
from stoker.core.errors import PeerRefusedError
from tests.cache.cluster.recorded import EPOCH, RECORDED

IDENTITY = Identity(node="a:7070")


def recorded(kind: type[Message]) -> bytes:
    return next(bytes.fromhex(text) for text, frame in RECORDED if isinstance(frame, kind))


@pytest.fixture
def ends() -> Iterator[tuple[NodeChannel, NodeChannel]]:
    """Of one connection over a Unix socket, where no secret is needed."""
    one, other = socket.socketpair()
    with one, other:
        yield NodeChannel(one, 5.0), NodeChannel(other, 5.0)


@pytest.mark.parametrize(("text", "frame"), RECORDED, ids=lambda value: type(value).__name__)
def test_what_was_recorded_is_read(text: str, frame: Message) -> None:
    data = bytes.fromhex(text)
    header = frames.FRAMING.header(data)
    assert (header.length, header.note) == (len(data) - HEADER_BYTES, EPOCH)
    assert frames.decode_body(header.kind, data[HEADER_BYTES:]) == frame


@pytest.mark.parametrize(("text", "frame"), RECORDED, ids=lambda value: type(value).__name__)
def test_what_is_sent_now_is_what_was_recorded(text: str, frame: Message) -> None:
    """But for the greeting, whose fields have names: more of them say more, and are passed over by who is older."""
    now = frames.encode(frame, EPOCH)
    if not isinstance(frame, Hello | Welcome):
        assert now.hex() == text
    assert now[:4] == bytes.fromhex(text)[:4]


def test_a_client_of_the_first_release_is_let_in(ends: tuple[NodeChannel, NodeChannel]) -> None:
    client, worker = ends
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(receive, worker, IDENTITY, 1, False, EPOCH)
        client.send_all(recorded(Hello))
        assert isinstance(client.message(4096), frames.Challenge)
        client.send_all(recorded(Proof))
        welcome = client.message(4096)
        assert isinstance(welcome, Welcome)
        assert (welcome.node, welcome.protocol) == ("a:7070", 1)
        assert received.result().process == "4711-00ff"


def test_a_worker_of_the_first_release_is_understood(ends: tuple[NodeChannel, NodeChannel]) -> None:
    client, worker = ends
    worker.send_all(recorded(frames.Challenge) + recorded(Welcome))
    welcome = greet(client, IDENTITY, EPOCH)
    assert (welcome.node, welcome.protocol, welcome.roots) == ("a:7070", 1, ("/pages",))


@pytest.mark.parametrize(
    ("oldest", "newest", "expected"),
    [(1, 1, frames.OLDEST_PROTOCOL), (1, 99, frames.PROTOCOL), (frames.PROTOCOL + 1, 99, None), (0, 0, None)],
)
def test_the_newest_protocol_that_both_know(oldest: int, newest: int, expected: int | None) -> None:
    assert frames.agreed(oldest, newest) == expected


def test_a_client_that_knows_no_protocol_of_ours_is_told_what_to_do(ends: tuple[NodeChannel, NodeChannel]) -> None:
    client, worker = ends
    client.send(Hello("default", oldest=98, newest=99))
    with pytest.raises(PeerRefusedError, match="speaks the cache's protocols 98 to 99"):
        receive(worker, IDENTITY, 1, False, EPOCH)
    refused = client.message(4096)
    assert isinstance(refused, frames.Refused)
    assert "restart the older one with the version of the other" in refused.text


def test_a_worker_that_goes_on_in_a_protocol_that_we_do_not_know_is_left_alone(
    ends: tuple[NodeChannel, NodeChannel],
) -> None:
    client, worker = ends
    worker.send_all(recorded(frames.Challenge) + frames.encode(Welcome(bytes(32), "a:7070", 1, protocol=99)))
    with pytest.raises(PeerRefusedError, match=r"`peer` speaks the cache's protocols 99 to 99.*start the older one"):
        greet(client, IDENTITY, EPOCH)
