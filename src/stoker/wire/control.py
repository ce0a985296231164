"""The proof that a request for a change comes from who can read the service's secret, without sending the secret.

Both sides prove it: another user who listens at the service's address learns nothing that is good elsewhere, or again.
A proof is for one request: its subject, its bytes, and a nonce of the service, which takes it once and in a minute.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker.core.errors import ServingError
from stoker.wire.secrets import DEFAULT_IDENTITY, NONCE_BYTES, SecretExchange, load_secrets, new_nonce

CONTROL_FILE = "control.secret"
"""Name of the file, in the folder of the run."""
CONTROL_HEADER = "Stoker-Control"
NONCE_HEADER = "Stoker-Nonce"
_VALID_S = 60
_TIME_BYTES = 8
_TAG_BYTES = 16
_LENGTH = _TIME_BYTES + NONCE_BYTES + _TAG_BYTES


class ControlChallenge(msgspec.Struct, frozen=True, kw_only=True):
    """What a service answers to who wants to change something.

    Attributes:
        secret_file: that both sides can read.
        nonce: of the service, in hexadecimal digits.
        proof: that the service knows the secret, as above.
    """

    secret_file: str
    nonce: str
    proof: str


class ControlChallenges:
    """The service's side.

    Args:
        path: of the file with the secret.
        clock: in seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._key = new_nonce()
        """Makes nonces known again, so that asking for many takes no memory."""
        self._used: dict[bytes, int] = {}

    def challenge(self, nonce: str) -> ControlChallenge:
        """The answer to a client's nonce.

        Raises:
            ValueError: the nonce is none.
            ConfigError: the secret cannot be read.
        """
        client = _nonce_of(nonce)
        begun = int(self._clock()).to_bytes(_TIME_BYTES, "big") + new_nonce()
        own = begun + self._tag(client, begun)
        proof = _exchange("", client, own).proof(_secret(self._path), "worker")
        return ControlChallenge(secret_file=str(self._path), nonce=own.hex(), proof=proof.hex())

    def accepts(self, header: str, subject: str, body: bytes) -> bool:
        """Whether a request comes from who knows the secret, for the first time.

        Args:
            header: :data:`CONTROL_HEADER` of the request.
            subject: what it changes.
            body: of the request.

        Raises:
            ConfigError: the secret cannot be read.
        """
        try:
            client, own, proof = (bytes.fromhex(word) for word in header.split(":"))
        except ValueError:
            return False
        if len(client) != NONCE_BYTES or len(own) != _LENGTH:
            return False
        now_s, begun = int(self._clock()), own[:-_TAG_BYTES]
        begun_s = int.from_bytes(own[:_TIME_BYTES], "big")
        if not hmac.compare_digest(own[-_TAG_BYTES:], self._tag(client, begun)) or now_s - begun_s > _VALID_S:
            return False
        self._used = {each: used_s for each, used_s in self._used.items() if now_s - used_s <= _VALID_S}
        exchange = _exchange(_content(subject, body), client, own)
        if own in self._used or not exchange.proves(proof, _secret(self._path), "client"):
            return False
        self._used[own] = begun_s
        return True

    def _tag(self, client: bytes, begun: bytes) -> bytes:
        return hmac.digest(self._key, client + begun, hashlib.sha256)[:_TAG_BYTES]


class ControlProof:
    """The client's side, for one request. Send :attr:`nonce`, then :meth:`header`."""

    def __init__(self) -> None:
        self._nonce = new_nonce()

    @property
    def nonce(self) -> str:
        """Value of :data:`NONCE_HEADER` of the request for a challenge."""
        return self._nonce.hex()

    def header(self, challenge: ControlChallenge, subject: str, body: bytes) -> str:
        """Value of :data:`CONTROL_HEADER` of the request for a change.

        Args:
            challenge: of the service.
            subject: what is changed.
            body: of the request.

        Raises:
            ServingError: what answered does not know the secret of such a service.
            ConfigError: the secret cannot be read here.
        """
        path = Path(challenge.secret_file)
        if path.name != CONTROL_FILE:  # nothing is proven by secrets of anything else
            raise ServingError(f"`secret_file` must be a service's {CONTROL_FILE}, got {challenge.secret_file!r}")
        secret = _secret(path)
        try:
            own, proof = bytes.fromhex(challenge.nonce), bytes.fromhex(challenge.proof)
        except ValueError:
            own = proof = b""
        if len(own) != _LENGTH or not _exchange("", self._nonce, own).proves(proof, secret, "worker"):
            raise ServingError(
                f"`{path}` must be the secret of the service that answers, and it does not know it; give the --url of "
                "the service with this run folder"
            )
        found = _exchange(_content(subject, body), self._nonce, own).proof(secret, "client")
        return f"{self._nonce.hex()}:{own.hex()}:{found.hex()}"


def _exchange(content: str, client: bytes, own: bytes) -> SecretExchange:
    return SecretExchange(f"stoker-serve-control{content}", DEFAULT_IDENTITY, client, own)


def _content(subject: str, body: bytes) -> str:
    name = subject.encode("utf-8", "surrogateescape")
    return ":" + hashlib.sha256(b"%d:" % len(name) + name + body).hexdigest()


def _nonce_of(text: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != NONCE_BYTES:
        raise ValueError(f"`{NONCE_HEADER}` must have {NONCE_BYTES} bytes in hexadecimal digits, got {text[:80]!r}")
    return found


def _secret(path: Path) -> bytes:
    return load_secrets(path).of(DEFAULT_IDENTITY) or new_nonce()
