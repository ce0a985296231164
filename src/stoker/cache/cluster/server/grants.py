"""Access control: which identity may read which paths. Paths without a grant are denied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission to read.

    Attributes:
        identity: that may; ``uid:1000`` for a user on a Unix socket, ``*`` for everyone who was authenticated.
        mount: a mount's namespace, or ``*``.
        prefix: of the paths; a whole part of a path (``bucket/train`` does not grant ``bucket/training``).
    """

    identity: str
    mount: str = "*"
    prefix: str = ""

    def allows(self, identity: str, mount: str, path: str) -> bool:
        """Whether this grant lets the identity read the path."""
        return (
            self.identity in ("*", identity)
            and self.mount in ("*", mount)
            and under(path, self.prefix)
            and ".." not in path.split("/")
        )


EVERYONE = (Grant("*"),)
"""Grants all mounts to all authenticated clients."""


def may_read(grants: Iterable[Grant], identity: str, mount: str, path: str) -> bool:
    """Whether any grant lets the identity read the path; what nothing grants is denied."""
    return any(grant.allows(identity, mount, path) for grant in grants)


def under(path: str, prefix: str) -> bool:
    """Whether a path is a prefix or lies under it, by whole parts; everything lies under the empty one."""
    prefix = prefix.rstrip("/")
    return not prefix or path == prefix or path.startswith(prefix + "/")
