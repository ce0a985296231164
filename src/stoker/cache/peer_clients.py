"""The clusters that this process reads from: one client for each, however many filesystems use it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import asdict, replace

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.client.connection_pool import machine_id
from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.cluster.membership.membership import Membership
from stoker.cache.settings import CacheSettings, ClusterSettings
from stoker.core.errors import ConfigError
from stoker.core.processes.forking import ForkedLock
from stoker.wire.secrets import DEFAULT_IDENTITY, load_secrets

SECRET_FILE = "secret"
"""File in the cache's directory with the default secret, if it exists."""

_clients: dict[tuple[ClusterSettings, Path], PeerClient] = {}
_lock = ForkedLock()


def peer_client(cache: CacheSettings) -> PeerClient:
    """The client of the cluster that the cache's settings name, opened at its first use.

    Args:
        cache: settled settings. The last ring is kept in the cache's directory. Its file ``secret`` is used for workers
            over TCP unless another one is named.

    Raises:
        ConfigError: the cluster's name is invalid, or its secret is missing or unusable.
    """
    place, cluster = Path(cache.directory).resolve(), cache.cluster
    secret = Path(cluster.secret_file or place / SECRET_FILE)
    if cluster.secret_file is None and secret.exists():
        cluster = replace(cluster, secret_file=str(secret))
    with _lock:
        if (cluster, place) not in _clients:
            membership = open_membership(cluster.join or "", place)
            if cluster.secret_file is None:
                _check_local(membership, secret)
            identity = load_secrets(secret).own if cluster.secret_file is not None else DEFAULT_IDENTITY
            settings = ClientSettings(**asdict(cluster), identity=identity, state_dir=place)
            _clients[cluster, place] = PeerClient(settings, membership=membership)
        return _clients[cluster, place]


def _check_local(membership: Membership, expected: Path) -> None:
    """Raises if workers on TCP need a secret and none is set: reads would silently bypass those workers."""
    record, here = membership.record(), machine_id()
    for member in record.members if record is not None else ():
        local = any(address.startswith("unix:") for address in member.addresses) and member.machine in ("", here)
        if member.addresses and not local:
            raise ConfigError(
                f"`cache-secret-file` must name the cluster's secret, since {member.id} is reached over TCP, and there "
                f"is none at {expected}; copy the file that `stoker cache start` names, mode 600"
            )
