"""An encrypted socket: whom it lets in, and that it waits and ends as a plain one."""

from __future__ import annotations

import random
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.core.errors import PeerLostError, PeerRefusedError
from stoker.wire.blocking import BlockingChannel
from stoker.wire.framing import Frame, Placing
from stoker.wire.polled import PolledChannel
from stoker.wire.tls import Certificate, TlsSocket, accepted, client_context, dialled, worker_context
from tests.wire.protocols import FRAMING, Kind


def encrypted(certificates: dict[str, Path]) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection."""
    ours, theirs = socket.socketpair()
    context = worker_context(Certificate(cert=certificates["right"]))
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(accepted, theirs, context, 10.0)
        client = dialled(ours, "tcp://127.0.0.1:1", "127.0.0.1", client_context(certificates["right"]), 10.0)
        return client, worker.result()


@pytest.mark.parametrize(
    ("shown", "trusted", "match"),
    [("right", "wrong", "does not verify"), ("elsewhere", "elsewhere", "IP address mismatch")],
)
def test_a_handshake_that_fails_names_the_reason(
    certificates: dict[str, Path], shown: str, trusted: str, match: str
) -> None:
    ours, theirs = socket.socketpair()
    context = worker_context(Certificate(cert=certificates[shown]))
    refused: list[Exception] = []

    def accept() -> None:
        try:
            accepted(theirs, context, 10.0)
        except PeerLostError as error:
            refused.append(error)

    worker = threading.Thread(target=accept)
    worker.start()
    with pytest.raises(PeerRefusedError, match=match):
        dialled(ours, "tcp://127.0.0.1:1", "127.0.0.1", client_context(certificates[trusted]), 10.0)
    worker.join()
    assert len(refused) == 1


def test_silence_and_ends_are_those_of_a_plain_connection(certificates: dict[str, Path]) -> None:
    client, served = (BlockingChannel(sock, FRAMING, 0.05) for sock in encrypted(certificates))
    served.bound(10.0, 10.0)
    with pytest.raises(PeerLostError, match="did not send anything for too long"):
        client.body(20_000)
    assert not client.wait(0.01)
    client.bound(10.0, 10.0)
    data = bytes(range(256)) * 1000
    sender = threading.Thread(target=served.send_parts, args=([data[:100], memoryview(data)[100:]],))
    sender.start()
    assert client.body(30) == data[:30]
    assert client.buffered
    target = bytearray(len(data) - 30)
    client.into(memoryview(target))
    sender.join()
    assert bytes(target) == data[30:]
    assert not client.buffered
    assert not client.arrived()
    assert served.send_now(b"now") == 3
    assert client.wait(10.0)
    assert client.arrived()
    assert client.body(3) == b"now"
    served.close()
    assert client.header() is None
    client.close()


def test_who_polls_gets_frames_and_placed_ends_over_tls(certificates: dict[str, Path]) -> None:
    ours, theirs = encrypted(certificates)
    slot = memoryview(bytearray(3 << 20))
    placing = Placing(4, lambda header, head: (4, slot[: header.length - 4]) if header.kind is Kind.PLACED else None)
    sender = PolledChannel(ours, FRAMING, blocking=False)
    receiver = PolledChannel(theirs, FRAMING, blocking=False, placing=placing)
    assert receiver.receive() == []
    data = random.Random(0).randbytes(len(slot))
    sender.send(Kind.PLACED, b"head", tail=memoryview(data))
    sender.send(Kind.LAST, b"end")
    assert sender.unsent  # more than sockets keep
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    frames: list[Frame[Kind]] = []
    while len(frames) < 2:
        sender.flush()
        assert sender.unsent or poll.poll(10_000)  # nothing stays behind that a poll does not show
        frames += receiver.receive() or []
    assert [(frame.kind, frame.body) for frame in frames] == [(Kind.PLACED, b"head"), (Kind.LAST, b"end")]
    assert slot == data
    stream = FRAMING.pack(Kind.PLACED, 4 + 100, 0) + b"head" + bytes(100) + FRAMING.pack(Kind.LAST, 0, 0)
    for record, expected in ((stream[:50], []), (stream[50:], [Kind.PLACED, Kind.LAST])):
        ours.sendall(record)  # the second is decrypted at once, and a poll does not show what is not taken of it
        assert poll.poll(10_000)
        assert [frame.kind for frame in receiver.receive() or []] == expected
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_what_breaks_encryption_ends_the_connection_as_a_plain_one(certificates: dict[str, Path]) -> None:
    ours, theirs = encrypted(certificates)
    receiver = PolledChannel(theirs, FRAMING, blocking=False)
    raw = socket.socket(fileno=ours.detach())
    with raw:
        raw.settimeout(None)
        raw.sendall(b"not a record of TLS")
        assert receiver.receive() is None
    receiver.close()
