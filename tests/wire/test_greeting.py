"""Two that share a secret meet in TLS of their own certificates; nobody else gets as far as a byte of what follows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stoker.core.errors import PeerLostError, PeerRefusedError, StokerError, WireError
from stoker.wire import greeting
from stoker.wire.greeting import FRAMING, GreetingKind, Opening
from stoker.wire.secrets import NONCE_BYTES, PROOF_BYTES, Secrets
from stoker.wire.tls import OwnCertificate, TlsSocket

pytest.importorskip("cryptography", reason="needs cryptography: pip install 'stoker[cluster]'")

from stoker.wire.certificates import create_certificate

SECRETS = Secrets({"default": b"0123456789abcdef"})
OTHERS = Secrets({"default": b"fedcba9876543210"})


@pytest.fixture(scope="module")
def ours() -> OwnCertificate:
    return create_certificate()


@pytest.fixture(scope="module")
def theirs() -> OwnCertificate:
    return create_certificate()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


class Answering(threading.Thread):
    """The side that was called."""

    def __init__(
        self, sock: socket.socket, own: OwnCertificate, secrets: Secrets = SECRETS, purpose: str = "p"
    ) -> None:
        super().__init__()
        self.answer: Callable[[], TlsSocket] = lambda: greeting.receive(sock, secrets, own, purpose, 2.0)
        self.got: TlsSocket | None = None
        self.error: StokerError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.got = self.answer()
        except StokerError as error:
            self.error = error

    def ended(self) -> StokerError | None:
        self.join(5.0)
        return self.error


def test_both_get_through_and_what_they_say_is_encrypted(pair: Any, ours: Any, theirs: Any) -> None:
    answering = Answering(pair[1], theirs)
    with greeting.greet(pair[0], SECRETS, ours, "p", 2.0) as sock:
        assert answering.ended() is None
        assert answering.got is not None
        with answering.got:
            sock.sendall(b"hello")
            into = bytearray(5)
            assert answering.got.recv_into(into) == 5
            assert into == b"hello"
            assert sock.version() == "TLSv1.3"


def test_another_secret_is_refused_in_words(pair: Any, ours: Any, theirs: Any) -> None:
    answering = Answering(pair[1], theirs)
    with pytest.raises(PeerRefusedError, match="the secret differs; use a copy of the host's --secret-file"):
        greeting.greet(pair[0], OTHERS, ours, "p", 2.0)
    assert isinstance(answering.ended(), PeerRefusedError)


def test_another_purpose_is_another_proof(pair: Any, ours: Any, theirs: Any) -> None:
    answering = Answering(pair[1], theirs)
    with pytest.raises(PeerRefusedError):
        greeting.greet(pair[0], SECRETS, ours, "q", 2.0)
    assert isinstance(answering.ended(), PeerRefusedError)


def frame(kind: GreetingKind, body: bytes) -> bytes:
    return FRAMING.pack(kind, len(body), 0) + body


def take(sock: socket.socket) -> tuple[GreetingKind, bytes]:
    head = sock.recv(FRAMING.num_bytes, socket.MSG_WAITALL)
    header = FRAMING.header(head)
    return header.kind, sock.recv(header.length, socket.MSG_WAITALL)


def test_a_greeting_that_was_listened_to_is_worth_nothing(pair: Any, ours: Any, theirs: Any) -> None:
    """Its proof is of another nonce than the one that is asked about now."""
    said: list[bytes] = []
    answering = Answering(pair[1], theirs)
    import stoker.wire.blocking as blocking

    send_all = blocking.BlockingChannel.send_all
    with pytest.MonkeyPatch.context() as patch:

        def noted(self: Any, data: Any) -> None:
            if self.sock is pair[0]:
                said.append(bytes(data))
            send_all(self, data)

        patch.setattr(blocking.BlockingChannel, "send_all", noted)
        greeting.greet(pair[0], SECRETS, ours, "p", 2.0).close()
    assert answering.ended() is None
    assert answering.got is not None
    answering.got.close()
    assert len(said) == 2
    with socket.create_server(("127.0.0.1", 0)) as server:
        again = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with again, other:
        answering = Answering(other, theirs)
        again.sendall(said[0])
        assert take(again)[0] is GreetingKind.CHALLENGE
        again.sendall(said[1])
        assert take(again)[0] is GreetingKind.REFUSED
        assert isinstance(answering.ended(), PeerRefusedError)


def test_a_certificate_that_is_put_in_on_the_way_breaks_the_proof(pair: Any, ours: Any, theirs: Any) -> None:
    """A proof covers both certificates."""
    between = create_certificate()
    answering = Answering(pair[1], theirs)
    hello = Opening("default", bytes(NONCE_BYTES), ours.der)
    import msgspec

    pair[0].sendall(frame(GreetingKind.HELLO, msgspec.msgpack.encode(hello)))
    _, body = take(pair[0])
    challenge = greeting.read_opening(body)
    exchange = greeting._exchange("p", "default", (hello.nonce, between.der), (challenge.nonce, challenge.certificate))
    pair[0].sendall(frame(GreetingKind.PROOF, exchange.proof(SECRETS.by_identity["default"], "client")))
    assert take(pair[0])[0] is GreetingKind.REFUSED
    assert isinstance(answering.ended(), PeerRefusedError)


def test_a_host_that_does_not_know_the_secret_is_found_out(pair: Any, ours: Any, theirs: Any) -> None:
    def pretend() -> None:
        import msgspec

        take(pair[1])
        challenge = Opening("", bytes(NONCE_BYTES), theirs.der)
        pair[1].sendall(frame(GreetingKind.CHALLENGE, msgspec.msgpack.encode(challenge)))
        take(pair[1])
        pair[1].sendall(frame(GreetingKind.WELCOME, bytes(PROOF_BYTES)))

    thread = threading.Thread(target=pretend)
    thread.start()
    with pytest.raises(PeerRefusedError, match="does not know the secret"):
        greeting.greet(pair[0], SECRETS, ours, "p", 2.0)
    thread.join()


def test_who_proves_the_secret_and_shows_another_certificate_is_refused(pair: Any, ours: Any, theirs: Any) -> None:
    other = create_certificate()
    answering = Answering(pair[1], theirs)
    announced = OwnCertificate(other.fd, ours.der)  # says one, has another
    with contextlib.suppress(StokerError, OSError), greeting.greet(pair[0], SECRETS, announced, "p", 2.0) as sock:
        sock.receive_s = 2.0
        assert not sock.recv_into(bytearray(1)), "nothing comes"
    assert isinstance(answering.ended(), StokerError)
    assert answering.got is None


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600)]
)
def test_what_is_no_greeting_is_left_alone(pair: Any, theirs: Any, said: bytes) -> None:
    answering = Answering(pair[1], theirs)
    pair[0].sendall(said)
    pair[0].shutdown(socket.SHUT_WR)
    assert isinstance(answering.ended(), (WireError, PeerLostError))


def test_a_byte_now_and_then_keeps_nobody(pair: Any, theirs: Any) -> None:
    answering = Answering(pair[1], theirs)
    hello = frame(GreetingKind.HELLO, bytes(400))
    for at in range(60):
        try:
            pair[0].sendall(hello[at : at + 1])
        except OSError:
            break
        if not answering.is_alive():
            break
        threading.Event().wait(0.05)
    assert isinstance(answering.ended(), PeerLostError)
