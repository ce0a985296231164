"""The cache's settings as the rest of the cache takes them: a directory, a size, and rules made of their texts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule, Verify
from stoker.cache.store.layout import Policy, default_directory, note_limit_bytes, note_policy
from stoker.core.cache_rules import RuleText, parse_rules
from stoker.core.config import CACHE_TIMEOUT_S, Settings

_WORDS = ("on", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Where the cache is and how it behaves.

    Attributes:
        directory: of the pages; None for the user's own.
        limit_bytes: of the cache; None for the size that was last asked for, else a part of the disk.
        rules: the first that fits counts.
        verify: when bytes are compared with their checksums.
        join: a cluster whose workers are asked before the store.
        secret_file: of the cluster; None for the one in the directory.
        tls_ca: certificates that vouch for its workers; None where nothing is encrypted.
        timeout_s: silence after which one of its workers counts as lost.
    """

    directory: Path | None = None
    limit_bytes: int | None = None
    rules: tuple[Rule, ...] = DEFAULT_RULES
    verify: Verify = "always"
    eviction: Policy | None = None
    join: str | None = None
    secret_file: Path | None = None
    tls_ca: Path | None = None
    timeout_s: float = CACHE_TIMEOUT_S


def cache_settings(settings: Settings) -> CacheSettings:
    """The settings of a run, as far as they are about the cache."""
    secret_file, tls_ca = settings.cache_secret_file, settings.cache_tls_ca
    return CacheSettings(
        directory=None if settings.cache in _WORDS else Path(settings.cache).expanduser().absolute(),
        limit_bytes=settings.cache_size_bytes,
        rules=rules_of(settings.cache_rules),
        verify=settings.cache_verify,
        eviction=settings.cache_eviction,
        join=settings.cache_join,
        secret_file=Path(secret_file).expanduser().absolute() if secret_file is not None else None,
        tls_ca=Path(tls_ca).expanduser().absolute() if tls_ca is not None else None,
        timeout_s=settings.cache_timeout_s,
    )


def settled(settings: CacheSettings) -> CacheSettings:
    """The settings with a directory, the user's own where none is named.

    Raises:
        CacheDirectoryError: the user's own would be on a network mount.
    """
    return replace(settings, directory=(settings.directory or default_directory()).expanduser().absolute())


def note_asked(settings: CacheSettings) -> None:
    """Notes the size and the eviction policy that are asked for, if any are, for those who open the cache later.

    Raises:
        CacheDirectoryError: the directory cannot be used.
    """
    if settings.directory is not None and settings.limit_bytes is not None:
        note_limit_bytes(settings.directory, settings.limit_bytes)
    if settings.directory is not None and settings.eviction is not None:
        note_policy(settings.directory, settings.eviction)


def rules_of(text: str | None) -> tuple[Rule, ...]:
    """The rules of a text, followed by the cache's own.

    Raises:
        ValueError: a rule cannot be understood.
    """
    return (*map(_rule, parse_rules(text) if text else ()), *DEFAULT_RULES)


def _rule(text: RuleText) -> Rule:
    freshness = Freshness.MAX_AGE if text.policy == "off" else Freshness(text.policy)
    return Rule(
        pattern=text.pattern,
        freshness=freshness,
        max_age_s=text.max_age_s,
        ttl_s=text.ttl_s,
        cached=text.policy != "off",
        quota_bytes=text.quota_bytes,
    )


def write_rule(rule: Rule) -> str:
    """A rule as people write it."""
    policy = f"{rule.max_age_s:g}s" if rule.freshness is Freshness.MAX_AGE else rule.freshness.value
    if not rule.cached:
        policy = "off"
    ttl = f" ttl={rule.ttl_s:g}s" if rule.ttl_s is not None else ""
    quota = f" quota={rule.quota_bytes}" if rule.quota_bytes is not None else ""
    return f"{rule.pattern} {policy}{ttl}{quota}"
