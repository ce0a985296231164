"""How programs are routed through the cache, as child interpreters are told; and what is in force in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stoker.cache.policies import Freshness, Rule, Verify
from stoker.core.config import CACHE_TIMEOUT_S


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


_in_force: Routing | None = None


def installed() -> Routing | None:
    """How programs are routed; None if they are not."""
    return _in_force


def put_in_force(routing: Routing | None) -> None:
    """Filesystems that are built from now on have these settings; None for no routing."""
    global _in_force
    _in_force = routing


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
