"""What the cache has of one object, and what the next read of it will do. Makes no request."""

from __future__ import annotations

from typing import NamedTuple

from stoker.cache.names import ObjectName, pages_of
from stoker.cache.object_metadata import Description
from stoker.cache.policies import Freshness, Rule
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version


class Look(NamedTuple):
    """An object, as the cache has it.

    Attributes:
        name: of the object.
        rule_number: number of the rule for its path.
        rule: for its path.
        version: of the cached pages; None where its description is not cached.
        digest: of that version; None where nothing is cached.
        size: bytes of the object; None where nothing is cached.
        checked_at: when the store was asked last (seconds since the epoch).
        pages: that are cached in this version.
        num_pages: of the whole object.
        cached_bytes: in these pages.
        is_pinned: whether a pin covers it.
        is_large: whether it has a separate file.
    """

    name: ObjectName
    rule_number: int
    rule: Rule
    version: Version | None
    digest: int | None
    size: int | None
    checked_at: float
    pages: int
    num_pages: int
    cached_bytes: int
    is_pinned: bool
    is_large: bool


def look(pages: PageStore, name: ObjectName, rule_number: int, rule: Rule) -> Look:
    """Looks an object up.

    Args:
        pages: of the cache.
        name: of the object.
        rule_number: number of the rule for its path.
        rule: for its path.
    """
    described = pages.description(name)
    version = Description.decode(described[1]).version if described is not None else None
    first = described[0] if described is not None else pages.lookup(name.key(0))
    is_pinned = any(name.namespace == pin.namespace and name.path.startswith(pin.path) for pin in pages.pinned())
    if first is None:
        return Look(name, rule_number, rule, None, None, None, 0.0, 0, 0, 0, is_pinned, False)
    digest, size = first.version, first.object_size
    entries = [pages.lookup(name.key(index)) for index in pages_of(0, size)]
    there = [entry for entry in entries if entry is not None and entry.version == digest]
    is_large = version is not None and pages.large(name, version) is not None
    checked_at = max([first.checked_at, *(entry.checked_at for entry in there[:1])])
    cached_bytes = sum(entry.length for entry in there)
    return Look(
        name, rule_number, rule, version, digest, size, checked_at, len(there), len(entries), cached_bytes, is_pinned,
        is_large,
    )  # fmt: skip


def next_read(found: Look, now: float) -> tuple[str, str]:
    """What the next read of the object does, and why, in words.

    Args:
        found: what the cache has.
        now: seconds since the epoch.
    """
    rule = found.rule
    if not rule.cached:
        return "passes through", "its rule excludes it from the cache"
    if found.digest is None:
        return "misses", "nothing of it is cached; it was not read yet, has changed, or was evicted"
    is_whole = found.pages == found.num_pages
    partly = f"{found.pages} of {found.num_pages} pages are cached; the others are fetched"
    if rule.freshness is Freshness.ALWAYS:
        return ("asks, then hits" if is_whole else "asks, then misses in part"), (
            "its rule asks the store at every open" + ("" if is_whole else f"; {partly}")
        )
    if rule.is_fresh(found.checked_at, now):
        if is_whole:
            return "hits", "all of it is cached, and the store's last answer is still fresh"
        return "misses in part", partly
    age = max(0.0, now - found.checked_at)
    stale = f"the store was asked {age:.0f} s ago, and its rule trusts that for {rule.max_age_s:g} s"
    if is_whole:
        return "asks, then hits", f"{stale}; an unchanged object is read from the cache"
    return "asks, then misses in part", f"{stale}; {partly}"


def folder_prefix(path: str, *, is_object: bool) -> str:
    """What names of a folder or an object begin with.

    Args:
        path: as its filesystem strips it.
        is_object: whether it is an object.
    """
    return path if is_object or not path or path.endswith("/") else f"{path}/"


def url_of_name(name: ObjectName) -> str:
    """An object's name as a URL."""
    protocol = name.namespace.partition("|")[0]
    return name.path if "://" in name.path else f"{protocol}://{name.path}"


def endpoint_of(name: ObjectName) -> str:
    """The server of the store, where it is not the protocol's usual one."""
    parts = name.namespace.split("|")
    protocol, endpoint = parts[0], parts[1] if len(parts) > 1 else ""
    if protocol in ("file", "memory"):
        return ""
    return endpoint.replace("%7C", "|").replace("%25", "%")
