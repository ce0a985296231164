"""Sends programs' reads of ``s3://`` and other URLs through the cache, by the classes of fsspec's registry and pyarrow.

Owns the routed protocols and their settings. ``unrouted`` names what cannot be routed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from stoker.cache.filesystem import by_class
from stoker.cache.filesystem.routed import routed_class
from stoker.cache.filesystem.routing_settings import Routing, installed, put_in_force
from stoker.cache.page_stores import settled
from stoker.cache.policies import Rule
from stoker.cache.settings import CacheSettings
from stoker.cache.sources import fsspec_registry

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hf", "sftp", "webhdfs")
"""Stores that are routed, where fsspec knows them; web servers only if a rule is for them."""
INSTALL_VARIABLE = "STOKER_CACHE_INSTALL"
"""Tells child interpreters to install, and how."""


def install(
    cache_settings: CacheSettings | None = None, *, protocols: Sequence[str] = PROTOCOLS, **chosen: Any
) -> None:
    """Routes what this process and its children read by fsspec and pyarrow from now on through the cache.

    Filesystems that were built before stay as they are.

    Args:
        cache_settings: of the cache, as a whole.
        protocols: to route; ``http://`` and ``https://`` are as well if one of the rules is for them.
        chosen: fields of :class:`stoker.cache.settings.CacheSettings` and of its cluster: ``directory`` of the cache,
            ``limit_bytes``, ``rules``, ``verify``, ``join``, ``secret_file`` and so on.

    Raises:
        TypeError: there is no such field.
        ValueError: a value breaks its rule.
    """
    settings = settled((cache_settings or CacheSettings()).with_arguments(chosen))
    web = [name for name in ("http", "https") if any(_is_for(rule, name) for rule in settings.all_rules)]
    _install(Routing(cache=settings, protocols=tuple(dict.fromkeys((*protocols, *web)))))


def install_from_environment() -> bool:
    """Installs as the parent process did; False if it did not."""
    text = os.environ.get(INSTALL_VARIABLE)
    if text:
        _install(Routing.from_json(text))
    return bool(text)


def uninstall() -> None:
    """Ends routing for filesystems that are built from now on."""
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
    os.environ[INSTALL_VARIABLE] = routing.to_json()
    for protocol in routing.protocols:
        fsspec_registry.replace(protocol, f"{__name__}.routed_{protocol}", lambda name=protocol: routed_class(name))
    by_class.install(routing.protocols)
    if importlib.util.find_spec("pyarrow") is not None:
        from stoker.cache.filesystem import arrow

        arrow.install(routing.protocols)


def _is_for(rule: Rule, protocol: str) -> bool:
    return rule.cached and rule.pattern.startswith((f"{protocol}://", "http*://"))


def __getattr__(name: str) -> Any:
    # `routed_s3` and the like: fsspec imports the classes from here, and pickles of their instances find them here.
    if name.startswith("routed_"):
        return routed_class(name.removeprefix("routed_"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
