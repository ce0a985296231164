"""Secrets that two sides share, and the proof of knowing one.

A secret authenticates both sides and never travels; it does not encrypt. Secrets stay out of logs, reprs and errors.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets as random_bytes
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stoker.core.errors import ConfigError

DEFAULT_IDENTITY = "default"
MIN_SECRET_BYTES = 16
NONCE_BYTES = 32
PROOF_BYTES = 32
_MAX_FILE_BYTES = 64 << 10
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")


@dataclass(frozen=True, slots=True)
class Secrets:
    """Secrets by identity.

    Attributes:
        by_identity: never shown.
    """

    by_identity: dict[str, bytes] = field(repr=False)

    def of(self, identity: str) -> bytes | None:
        """The secret of an identity; None for an unknown one."""
        return self.by_identity.get(identity)

    @property
    def own(self) -> str:
        """The identity of a client that has only this file: the one that there is, else the default one."""
        return next(iter(self.by_identity)) if len(self.by_identity) == 1 else DEFAULT_IDENTITY

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("secrets are not pickled: pass the path of their file")


def load_secrets(path: str | Path) -> Secrets:
    """The secrets of a file: one a line, ``identity secret`` or only ``secret`` (for the identity ``default``).

    Raises:
        ConfigError: the file is missing, readable for others, of another user, or holds no usable secret.
    """
    try:
        with open(path, "rb") as file:
            facts = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"`{path}` must hold the cluster's secret: {error.strerror}") from None
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077 or facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"`{path}` must be a file of this user that no other may read, got mode {stat.S_IMODE(facts.st_mode):o} "
            f"and owner {facts.st_uid}; chmod 600 {path}"
        )
    return _parse(path, data)


def _parse(path: str | Path, data: bytes) -> Secrets:
    found: dict[str, bytes] = {}
    for number, line in enumerate(data[:_MAX_FILE_BYTES].splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        identity = words[0].decode("ascii", "replace") if len(words) == 2 else DEFAULT_IDENTITY
        if len(words) > 2 or not _IDENTITY.fullmatch(identity) or len(words[-1]) < MIN_SECRET_BYTES:
            # The line itself is not shown: it may be most of a secret.
            raise ConfigError(
                f"`{path}` line {number} must be `secret` or `identity secret`, with at least {MIN_SECRET_BYTES} "
                "characters of secret; stoker cache secret writes one"
            )
        found[identity] = words[-1]
    if not found or len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"`{path}` must hold 1 secret or more in at most {_MAX_FILE_BYTES} bytes, got {len(found)}")
    return Secrets(found)


def create_secret(path: Path) -> None:
    """Writes a file with one fresh secret that only this user can read.

    Raises:
        FileExistsError: the file exists; it is not changed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(random_bytes.token_hex(32).encode() + b"\n")


def new_nonce() -> bytes:
    """Bytes that were never used before."""
    return random_bytes.token_bytes(NONCE_BYTES)


@dataclass(frozen=True, slots=True)
class SecretExchange:
    """What both sides of a new connection prove a secret over, so that a proof is good for it alone.

    Attributes:
        purpose: the protocol that follows; a secret may serve several.
        identity: that the client named.
        client_nonce: fresh.
        worker_nonce: fresh.
    """

    purpose: str
    identity: str
    client_nonce: bytes
    worker_nonce: bytes

    def proof(self, secret: bytes, role: Literal["client", "worker"]) -> bytes:
        """The proof of knowing a secret; the role keeps either side from sending the other's proof back."""
        text = f"{self.purpose}|{role}|{len(self.identity)}|{self.identity}|".encode("utf-8", "surrogateescape")
        return hmac.digest(secret, text + self.client_nonce + self.worker_nonce, hashlib.sha256)

    def proves(self, proof: bytes, secret: bytes | None, role: Literal["client", "worker"]) -> bool:
        """Whether a proof is that of the secret; None takes as long, so that time does not tell which names exist."""
        return hmac.compare_digest(proof, self.proof(secret or new_nonce(), role)) and secret is not None
