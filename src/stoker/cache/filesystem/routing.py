# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Programs that say ``s3://`` read through the cache: fsspec's registry hands out classes that do, pyarrow likewise.

Owns what is routed and the settings it is routed with. What cannot be routed is named by ``around``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.cache.filesystem import by_class
from stoker.cache.filesystem.routed import routed_class
from stoker.cache.filesystem.routing_settings import Routing, installed, put_in_force
from stoker.cache.policies import DEFAULT_RULES, Rule, Verify
from stoker.cache.sources import fsspec_registry
from stoker.cache.store.layout import default_directory
from stoker.core.config import CACHE_TIMEOUT_S

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hf", "sftp", "webhdfs")
"""Stores that are routed, where fsspec knows them; web servers only if a rule is for them."""
INSTALL_VARIABLE = "STOKER_CACHE_INSTALL"
"""Tells child interpreters to install, and how."""


def install(
    *,
    rules: Sequence[Rule] = DEFAULT_RULES,
    directory: str | os.PathLike[str] | None = None,
    limit_bytes: int | None = None,
    verify: Verify = "always",
    protocols: Sequence[str] = PROTOCOLS,
    join: str | None = None,
    secret_file: str | os.PathLike[str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    timeout_s: float = CACHE_TIMEOUT_S,
) -> None:
    """Routes what this process and its children read by fsspec and pyarrow from now on through the cache.

    Filesystems that were built before stay as they are.

    Args:
        rules: of paths; the first that fits counts. ``http://`` and ``https://`` are routed if one is for them.
        directory: of the cache; None for the user's own.
        limit_bytes: of a cache that has to be created; None for a part of the disk.
        verify: when bytes are compared with their checksums: ``always``, or on ``first-touch`` by a process.
        protocols: to route.
        join: a cluster whose workers are asked before the store, such as ``static:a:7070,b:7070``.
        secret_file: of the cluster; None for ``secret`` in the cache's directory.
        tls_ca: certificates that vouch for its workers, which are then reached by TLS.
        timeout_s: silence after which one of its workers counts as lost.
    """
    place = Path(directory) if directory is not None else default_directory()
    web = [name for name in ("http", "https") if any(_is_for(rule, name) for rule in rules)]
    _install(
        Routing(
            directory=str(place.expanduser().absolute()),
            limit_bytes=limit_bytes,
            rules=tuple(rules),
            verify=verify,
            protocols=tuple(dict.fromkeys((*protocols, *web))),
            join=join,
            secret_file=str(Path(secret_file).expanduser().absolute()) if secret_file is not None else None,
            tls_ca=str(Path(tls_ca).expanduser().absolute()) if tls_ca is not None else None,
            timeout_s=timeout_s,
        )
    )


def install_from_environment() -> bool:
    """Installs as the parent process did; False if it did not."""
    text = os.environ.get(INSTALL_VARIABLE)
    if text:
        _install(Routing.decode(text))
    return bool(text)


def uninstall() -> None:
    """Reads are the program's own again, for filesystems that are built from now on."""
    if installed() is None:
        return
    put_in_force(None)
    os.environ.pop(INSTALL_VARIABLE, None)
    fsspec_registry.restore()
    routed_class.cache_clear()
    by_class.uninstall()
    if (arrow := sys.modules.get("stoker.cache.filesystem.arrow")) is not None:
        arrow.uninstall()


def _install(routing: Routing) -> None:
    uninstall()
    put_in_force(routing)
    os.environ[INSTALL_VARIABLE] = routing.encode()
    for protocol in routing.protocols:
        fsspec_registry.replace(protocol, f"{__name__}.routed_{protocol}", lambda name=protocol: routed_class(name))
    by_class.install(routing.protocols)
    if importlib.util.find_spec("pyarrow") is not None:
        from stoker.cache.filesystem import arrow

        arrow.install(routing.protocols)


def _is_for(rule: Rule, protocol: str) -> bool:
    return rule.cached and rule.pattern.startswith((f"{protocol}://", "http*://"))


def __getattr__(name: str) -> Any:
    # `routed_s3` and its like: where fsspec imports the classes from, and where pickles of their instances find them.
    if name.startswith("routed_"):
        return routed_class(name.removeprefix("routed_"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
