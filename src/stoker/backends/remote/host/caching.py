"""A host's side of a run's cache: its reads go through the cache of its machine, which asks the run's cluster.

Installed before the program is loaded, in the process from which all of its sessions and data workers descend.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

import msgspec

from stoker.backends.remote.caching import ShippedCache
from stoker.cache.page_stores import settled
from stoker.cache.settings import CacheSettings
from stoker.core.errors import StokerError


def read_through(shipped: ShippedCache) -> str:
    """Routes this process's reads of stores through the cache; why it can't be, as half a sentence, or empty.

    Files are then read as without a cache: a store gives the same bytes.
    """
    lacking = [name for name in ("fsspec", "xxhash") if importlib.util.find_spec(name) is None]
    if lacking:
        return f'has no {" and no ".join(lacking)}; there: pip install "stoker[cache]"'
    try:
        settings = here(CacheSettings.from_json(shipped.settings), shipped)
        from stoker.cache.page_stores import page_store

        page_store(settings)
        if settings.cluster.join:
            from stoker.cache.peer_clients import peer_client

            peer_client(settings).check()
        importlib.import_module("stoker.cache.filesystem.routing").install(settings)
    except (StokerError, OSError) as error:
        return f"can't use its cache: {error.args[0] if isinstance(error, StokerError) else error}"
    return ""


def here(settings: CacheSettings, shipped: ShippedCache) -> CacheSettings:
    """The run's settings as they are on this machine: its own directory, and files in memory for what was sent.

    Args:
        settings: of the run.
        shipped: with the contents of its files.
    """
    cluster = msgspec.structs.replace(
        settings.cluster,
        secret_file=None if shipped.secret is None else _file_of(shipped.secret),
        tls_ca=None if shipped.authorities is None else _file_of(shipped.authorities),
    )
    own = settled(CacheSettings(directory="on")).directory
    return msgspec.structs.replace(settings, directory=own, cluster=cluster)


def _file_of(data: bytes) -> str:
    """A file without a name that this process and its children can read, as long as one of them lives."""
    fd = os.memfd_create("stoker-shared", 0)
    os.fchmod(fd, 0o600)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    os.set_inheritable(fd, True)
    return f"/proc/self/fd/{fd}"
