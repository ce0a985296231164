"""The stores that a worker reads for clients, and access to them: ``--mount`` and ``--grant``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from stoker.cache.cluster.server.grants import Grant
from stoker.cache.sources.opening import SourceSpec
from stoker.core.errors import ConfigError
from stoker.wire.secrets import DEFAULT_IDENTITY


class Mounted(NamedTuple):
    """A store that a worker reads.

    Attributes:
        spec: how to open it.
        prefix: objects below it are served.
    """

    spec: SourceSpec
    prefix: str

    @property
    def root(self) -> str:
        """What precedes the names of its objects."""
        return f"{self.prefix}/" if self.prefix or self.spec.protocol == "file" else ""

    def grant(self, identity: str, below: str = "") -> Grant:
        """The permission to read what is below a path of it."""
        return Grant(identity, self.spec.namespace, f"{self.root}{below}".rstrip("/"))


def mounts_of(texts: list[str]) -> dict[str, Mounted]:
    """The stores by name.

    Args:
        texts: ``NAME=URL`` each.

    Raises:
        ConfigError: there is none, or one is not of that form, or a name comes twice.
    """
    if not texts:
        raise ConfigError("`--mount` must name a store that this worker reads, such as s3=s3://, got none")
    found: dict[str, Mounted] = {}
    for text in texts:
        name, equals, url = text.partition("=")
        parts = urlsplit(url)
        if not equals or not name or not parts.scheme or name in found:
            raise ConfigError(f"`--mount` must be NAME=URL such as s3=s3://bucket, each name once, got {text!r}")
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        found[name] = Mounted(SourceSpec(parts.scheme, options), f"{parts.netloc}{parts.path}".rstrip("/"))
    return found


def grants_of(texts: list[str], mounts: Mapping[str, Mounted]) -> tuple[Grant, ...]:
    """Which identity may read what: without grants, everyone may read every mount.

    Workers use the identity ``default`` among themselves, which may always read everything: its secret is theirs.

    Args:
        texts: ``IDENTITY=MOUNT`` or ``IDENTITY=MOUNT/PATH`` each.
        mounts: by name.

    Raises:
        ConfigError: a text has another form, or names no mount.
    """
    identities = [DEFAULT_IDENTITY] if texts else ["*"]
    found = [mounted.grant(identity) for identity in identities for mounted in mounts.values()]
    for text in texts:
        identity, equals, place = text.partition("=")
        name, _, below = place.partition("/")
        if not equals or not identity or name not in mounts:
            raise ConfigError(
                f"`--grant` must be IDENTITY=MOUNT or IDENTITY=MOUNT/PATH with a mount of {', '.join(mounts)}, got "
                f"{text!r}"
            )
        found.append(mounts[name].grant(identity, below))
    return tuple(found)
