"""How a run reads its stores, for a host: the settings of its data cache, with the files that they name.

A host keeps pages in a private directory; rules, versions that the run pins and the cluster are the run's. What is
secret of them goes only through connections that are encrypted and known on both sides.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stoker.cache.peer_clients import SECRET_FILE
from stoker.cache.settings import CacheSettings


class ShippedCache(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a cache, and the contents of the files that they name where the program runs."""

    settings: str
    """As JSON."""
    secret: bytes | None = None
    authorities: bytes | None = None


def shipped_cache(settings: CacheSettings) -> ShippedCache:
    """What a host needs of a run's cache.

    Args:
        settings: settled ones, of the run.

    Raises:
        OSError: a file that they name can't be read.
    """
    cluster, own = settings.cluster, Path(settings.directory) / SECRET_FILE
    secret = Path(cluster.secret_file) if cluster.secret_file is not None else own if own.exists() else None
    return ShippedCache(
        settings=settings.to_json(),
        secret=secret.read_bytes() if secret is not None and cluster.join else None,
        authorities=Path(cluster.tls_ca).read_bytes() if cluster.tls_ca is not None else None,
    )
