# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownMemberType=false
"""Resolves a URL of a store to its cached filesystem and the path in it."""

from __future__ import annotations

from typing import Any

import fsspec

from stoker.cache.filesystem.routing_settings import installed
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.page_stores import settled
from stoker.cache.reading import reader
from stoker.cache.settings import CacheSettings
from stoker.core.errors import ConfigError, MissingExtraError
from stoker.core.settings_sources import resolve

_WITHOUT_HOST = ("file", "local", "memory", "hdfs", "webhdfs", "arrow_hdfs", "viewfs")
"""Protocols whose paths may start right after ``://``: local ones, or those of a cluster configured elsewhere."""


def settings_in_use() -> CacheSettings:
    """The settings of the cache that this process already uses, else those of ``stoker config show``.

    Raises:
        CacheDirectoryError: the user's own directory would be on a network mount.
    """
    routing = installed()
    return routing.cache if routing is not None else settled(resolve(CacheSettings).settings)


def open_place(
    url: str, settings: CacheSettings, options: dict[str, Any] | None = None
) -> tuple[StokerFileSystem, str]:
    """The cached filesystem of a URL, and the path in it.

    Args:
        url: ``s3://bucket/key``, also as ``stoker://s3/bucket/key`` or ``stoker::s3://bucket/key``.
        settings: of the cache.
        options: for the store's filesystem; what the environment says is used in any case.

    Raises:
        ConfigError: the URL names no store.
        MissingExtraError: the store's filesystem is not installed.
    """
    plain = checked_url(url)
    protocol = plain.partition("://")[0]
    try:
        target: Any = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        package = str(error).splitlines()[0]
        raise MissingExtraError(f"`{protocol}://` needs its fsspec filesystem: {package}", protocol=protocol) from None
    filesystem = StokerFileSystem(
        target_protocol=protocol,
        target_options={**target._get_kwargs_from_urls(plain), **(options or {})},
        cache_settings=settings,
    )
    return filesystem, filesystem._strip_protocol(plain)


def checked_url(url: str) -> str:
    """The plain form of a URL; it must name a place, since a whole kind of store cannot be read or pinned.

    Raises:
        ConfigError: it has no protocol, names no place, or no bucket or host where there must be one.
    """
    plain = plain_url(url)
    protocol, separator, place = plain.partition("://")
    found = ""
    if not separator or not protocol:
        found = "no protocol"
    elif not place.strip("/") and not (place and protocol in _WITHOUT_HOST):
        found = f"nothing behind `{protocol}://`"
    elif place.startswith("/") and protocol not in _WITHOUT_HOST:
        found = "no bucket or host"
    if found:
        raise ConfigError(f"`{url}` must be a URL such as `s3://bucket/folder`, got {found}")
    return plain


def plain_url(url: str) -> str:
    """``s3://bucket/key`` of any way to write it."""
    if url.startswith("stoker://"):
        protocol, _, rest = url.removeprefix("stoker://").partition("/")
        return f"{protocol}://{rest}"
    return url.removeprefix("stoker::")


def url_of(filesystem: StokerFileSystem, path: str) -> str:
    """A path as the store's URL."""
    return reader.url_of(filesystem.spec.protocol, path)
