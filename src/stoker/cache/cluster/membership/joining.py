"""Parses ``--join`` into a membership."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.cache.cluster.membership.etcd_membership import EtcdMembership
from stoker.cache.cluster.membership.membership import FileMembership, Membership, StaticMembership
from stoker.cache.cluster.membership.ring import Member
from stoker.core.errors import ConfigError
from stoker.wire.sockets import check_address

_FORMS = "static:a:7070,b:7070, file:///ring.json or etcd://h1:2379,h2:2379/cluster"
_CLUSTER = re.compile(r"[A-Za-z0-9._-]{1,100}")


def open_membership(join: str, state_dir: Path | None = None) -> Membership:
    """The membership of a cluster.

    Args:
        join: ``static:a:7070,b:7070*2`` (with weights), ``static:/run/a.sock`` (a Unix socket), ``file:///ring.json``,
            or ``etcd://h1:2379,h2:2379/cluster``.
        state_dir: where the last record of etcd is kept.

    Raises:
        ConfigError: the text has none of these forms.
    """
    scheme, _, rest = join.partition(":")
    if scheme == "static":
        return StaticMembership(tuple(_member(entry) for entry in rest.split(",")))
    parts = urlsplit(join)
    if scheme == "file" and parts.path and parts.netloc in ("", "localhost"):
        return FileMembership(Path(unquote(parts.path)))
    if scheme == "etcd" and parts.netloc and "@" not in parts.netloc:
        cluster = parts.path.strip("/") or "default"
        if not _CLUSTER.fullmatch(cluster):
            raise ConfigError(f"`--join` must name a cluster of letters, digits and ._-, got {cluster!r}")
        try:
            return EtcdMembership(parts.netloc.split(","), cluster, state_dir)
        except ValueError as error:
            raise ConfigError(f"`--join` must be {_FORMS}: {error}") from None
    raise ConfigError(f"`--join` must be {_FORMS}, got {join!r}")


def _member(entry: str) -> Member:
    address, star, weight = entry.strip().partition("*")
    try:
        url = f"unix://{address}" if address.startswith("/") else f"tcp://{address}"
        check_address(url)
        return Member(id=address, addresses=(url,), weight=float(weight) if star else 1.0)
    except ValueError as error:
        raise ConfigError(f"`--join` must be {_FORMS}, got {entry!r}: {error}") from None
