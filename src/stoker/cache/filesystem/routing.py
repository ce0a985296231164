# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Programs that say ``s3://`` read through the cache: fsspec's registry hands out classes that do, pyarrow likewise.

Owns what is routed and the settings it is routed with. What cannot be routed is named by ``around``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.cache.filesystem import by_class
from stoker.cache.filesystem.routed import routed_class
from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule, Verify
from stoker.cache.sources import originals
from stoker.cache.store.layout import default_directory
from stoker.core.config import CACHE_TIMEOUT_S

PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "hf", "sftp", "webhdfs")
"""Stores that are routed, where fsspec knows them; web servers only if a rule is for them."""
INSTALL_VARIABLE = "STOKER_CACHE_INSTALL"
"""Tells child interpreters to install, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How programs are routed.

    Attributes:
        directory: of the cache.
        limit_bytes: of a cache that has to be created; None for a part of the disk.
        rules: of paths.
        verify: when bytes are compared with their checksums.
        protocols: that are routed.
        join: a cluster whose workers are asked before the store; None for none.
        secret_file: of the cluster; None for the one in the directory.
        tls_ca: certificates that vouch for its workers; None where nothing is encrypted.
        timeout_s: silence after which one of its workers counts as lost.
    """

    directory: str
    limit_bytes: int | None
    rules: tuple[Rule, ...]
    verify: Verify
    protocols: tuple[str, ...]
    join: str | None = None
    secret_file: str | None = None
    tls_ca: str | None = None
    timeout_s: float = CACHE_TIMEOUT_S

    def options(self) -> dict[str, Any]:
        """For the constructor of the cache's filesystem."""
        names = ("join", "secret_file", "tls_ca", "timeout_s") if self.join else ()
        cluster = {name: getattr(self, name) for name in names}
        return {
            "directory": self.directory,
            "limit_bytes": self.limit_bytes,
            "rules": self.rules,
            "verify": self.verify,
            **cluster,
        }

    def encode(self) -> str:
        """As text for child interpreters."""
        rules = [
            [rule.pattern, rule.freshness.value, rule.max_age_s, rule.ttl_s, rule.cached, rule.quota_bytes]
            for rule in self.rules
        ]
        cluster = [self.join, self.secret_file, self.tls_ca, self.timeout_s]
        return json.dumps([self.directory, self.limit_bytes, rules, self.verify, self.protocols, *cluster])

    @staticmethod
    def decode(text: str) -> Routing:
        """From text that :meth:`encode` wrote."""
        directory, limit_bytes, rules, verify, protocols, join, secret_file, tls_ca, timeout_s = json.loads(text)
        return Routing(
            directory=directory,
            limit_bytes=limit_bytes,
            rules=tuple(_rule(*fields) for fields in rules),
            verify=verify,
            protocols=tuple(protocols),
            join=join,
            secret_file=secret_file,
            tls_ca=tls_ca,
            timeout_s=timeout_s,
        )


_routing: Routing | None = None


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
    global _routing
    if _routing is None:
        return
    _routing = None
    os.environ.pop(INSTALL_VARIABLE, None)
    originals.restore()
    routed_class.cache_clear()
    by_class.uninstall()
    if (arrow := sys.modules.get("stoker.cache.filesystem.arrow")) is not None:
        arrow.uninstall()


def installed() -> Routing | None:
    """How programs are routed; None if they are not."""
    return _routing


def _install(routing: Routing) -> None:
    global _routing
    uninstall()
    _routing = routing
    os.environ[INSTALL_VARIABLE] = routing.encode()
    for protocol in routing.protocols:
        originals.replace(protocol, f"{__name__}.routed_{protocol}", lambda name=protocol: routed_class(name))
    by_class.install(routing.protocols)
    if importlib.util.find_spec("pyarrow") is not None:
        from stoker.cache.filesystem import arrow

        arrow.install(routing.protocols)


def _is_for(rule: Rule, protocol: str) -> bool:
    return rule.cached and rule.pattern.startswith((f"{protocol}://", "http*://"))


def _rule(
    pattern: str, freshness: str, max_age_s: float, ttl_s: float | None, cached: bool, quota_bytes: int | None
) -> Rule:
    return Rule(
        pattern=pattern,
        freshness=Freshness(freshness),
        max_age_s=max_age_s,
        ttl_s=ttl_s,
        cached=cached,
        quota_bytes=quota_bytes,
    )


def __getattr__(name: str) -> Any:
    # `routed_s3` and its like: where fsspec imports the classes from, and where pickles of their instances find them.
    if name.startswith("routed_"):
        return routed_class(name.removeprefix("routed_"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
