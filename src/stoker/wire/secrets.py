"""Who may read what: shared secrets, the proof of knowing one, the user behind a Unix socket, and grants.

A secret authenticates both sides and never travels; it does not encrypt. Secrets stay out of logs, reprs and errors.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets as random_bytes
import socket
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stoker.core.errors import ConfigError

DEFAULT_IDENTITY = "default"
MIN_SECRET_BYTES = 16
_MAX_FILE_BYTES = 64 << 10
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


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
        raise TypeError("secrets are not pickled: hand on the path of their file")


def load_secrets(path: Path) -> Secrets:
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


def _parse(path: Path, data: bytes) -> Secrets:
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
        FileExistsError: there is a file already; it is left as it is.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(random_bytes.token_hex(32).encode() + b"\n")


def new_nonce() -> bytes:
    """32 bytes that were never used before."""
    return random_bytes.token_bytes(32)


def prove(secret: bytes, role: str, identity: str, client_nonce: bytes, worker_nonce: bytes) -> bytes:
    """The proof of knowing a secret.

    Args:
        secret: shared.
        role: ``client`` or ``worker``, so that neither can send the other's proof back.
        identity: that the client named.
        client_nonce: fresh, 32 bytes.
        worker_nonce: fresh, 32 bytes.
    """
    text = f"stoker cache 1|{role}|{len(identity)}|{identity}|".encode("utf-8", "surrogateescape")
    return hmac.digest(secret, text + client_nonce + worker_nonce, hashlib.sha256)


def proves(proof: bytes, secret: bytes, role: str, identity: str, client_nonce: bytes, worker_nonce: bytes) -> bool:
    """Whether a proof is that of the secret; takes the same time whatever the proof."""
    return hmac.compare_digest(proof, prove(secret, role, identity, client_nonce, worker_nonce))


def user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket, as the kernel recorded it at connect."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(data)[1]


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission to read.

    Attributes:
        identity: that may; ``uid:1000`` for a user on a Unix socket, ``*`` for everyone who was authenticated.
        mount: a mount's namespace, or ``*``.
        prefix: of the paths; a whole part of a path (``bucket/train`` does not grant ``bucket/training``).
    """

    identity: str
    mount: str = "*"
    prefix: str = ""

    def allows(self, identity: str, mount: str, path: str) -> bool:
        """Whether this grant lets the identity read the path."""
        return (
            self.identity in ("*", identity)
            and self.mount in ("*", mount)
            and under(path, self.prefix)
            and ".." not in path.split("/")
        )


EVERYONE = (Grant("*"),)
"""All that is mounted, to all who are authenticated."""


def may_read(grants: Iterable[Grant], identity: str, mount: str, path: str) -> bool:
    """Whether any grant lets the identity read the path; what nothing grants is denied."""
    return any(grant.allows(identity, mount, path) for grant in grants)


def under(path: str, prefix: str) -> bool:
    """Whether a path is a prefix or lies under it, by whole parts; everything lies under the empty one."""
    prefix = prefix.rstrip("/")
    return not prefix or path == prefix or path.startswith(prefix + "/")
