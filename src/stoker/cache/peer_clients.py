"""The clusters that this process reads from: one client for each, however many filesystems use it."""

from __future__ import annotations

import os
from pathlib import Path

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.client.connection_pool import machine_id
from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.cluster.membership.membership import Membership
from stoker.core.config import CACHE_TIMEOUT_S
from stoker.core.errors import ConfigError
from stoker.core.forking import ForkedLock
from stoker.wire.secrets import DEFAULT_IDENTITY, load_secrets

SECRET_FILE = "secret"
"""Beside the pages: the secret that is used where no other file is named, if it is there."""

_clients: dict[tuple[str, Path | None, Path | None, float, Path], PeerClient] = {}
_lock = ForkedLock()


def peer_client(
    join: str,
    directory: str | os.PathLike[str],
    secret_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    timeout_s: float = CACHE_TIMEOUT_S,
) -> PeerClient:
    """The client of a cluster, opened with its first use.

    Args:
        join: the cluster, as ``--join`` takes it.
        directory: of this process's pages, where the last ring is kept as well.
        secret_file: for workers that are reached over TCP; None for the file ``secret`` beside the pages.
        tls_ca: certificates that vouch for the workers, which are then reached by TLS; None where nothing is encrypted.
        timeout_s: silence after which a worker counts as lost.

    Raises:
        ConfigError: the cluster is named wrongly, or its secret is missing or cannot be used.
    """
    place = Path(directory).expanduser().resolve()
    secret = Path(secret_file).expanduser().absolute() if secret_file is not None else place / SECRET_FILE
    known = secret if secret_file is not None or secret.exists() else None
    ca = Path(tls_ca).expanduser().absolute() if tls_ca is not None else None
    key = join, known, ca, timeout_s, place
    with _lock:
        if key not in _clients:
            membership = open_membership(join, place)
            if known is None:
                _check_local(membership, secret)
            identity = load_secrets(known).own if known is not None else DEFAULT_IDENTITY
            settings = ClientSettings(
                join=join, secret_file=known, identity=identity, state_dir=place, tls_ca=ca, timeout_s=timeout_s
            )  # fmt: skip
            _clients[key] = PeerClient(settings, membership=membership)
        return _clients[key]


def _check_local(membership: Membership, expected: Path) -> None:
    """Refuses to go without a secret where workers are on TCP: each of them would be left out, and nobody told."""
    record, here = membership.record(), machine_id()
    for member in record.members if record is not None else ():
        local = any(address.startswith("unix:") for address in member.addresses) and member.machine in ("", here)
        if member.addresses and not local:
            raise ConfigError(
                f"`cache-secret-file` must name the cluster's secret, since {member.id} is reached over TCP, and there "
                f"is none at {expected}; copy the file that `stoker cache start` names, mode 600"
            )
