"""Which store a filesystem's options mean: what is public and decides it, and nothing else of them."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.cache.names import namespace_of

ALIASES = {"s3a": "s3", "local": "file", "gcs": "gs", "https": "http"}
"""Other names of a protocol; the same object must have one name."""

# What of the options of any filesystem decides which object a path means. The rest is secret or a matter of tuning.
_PLACES = ("endpoint", "endpoint_url", "endpoint_override", "host", "port", "base_url", "server_uri", "url")
_ACCOUNTS = ("account_name", "tenant_id", "project", "namespace", "org", "repo", "instance", "username", "fo")
_S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")

_process_ids: dict[int, str] = {}


def namespace_for(protocol: str, options: Mapping[str, Any]) -> str:
    """The namespace of the store that a filesystem with these options reads.

    Args:
        protocol: any of its names.
        options: for the filesystem's constructor.
    """
    protocol = ALIASES.get(protocol, protocol)
    if protocol == "s3":
        return _s3_namespace(options)
    if protocol == "file":
        return namespace_of("file", _machine_id())
    if protocol == "memory":
        # A forked child has its own copy of every object, and a later process may get the same number.
        return namespace_of("memory", _process_ids.setdefault(os.getpid(), uuid.uuid4().hex))
    places = [str(value) for value in _plain(options, _PLACES).values()]
    accounts = [f"{name}={value}" for name, value in _plain(options, _ACCOUNTS).items()]
    accounts += _public_parts(options.get("connection_string"))
    return namespace_of(protocol, ":".join(places), ",".join(accounts))


def _s3_namespace(options: Mapping[str, Any]) -> str:
    client_options: Mapping[str, Any] = options.get("client_kwargs") or {}
    endpoint: Any = options.get("endpoint_url") or client_options.get("endpoint_url") or ""
    if not endpoint:
        endpoint = next((os.environ[name] for name in _S3_VARIABLES if os.environ.get(name)), "")
    # A profile may name an endpoint.
    profile = str(options.get("profile") or os.environ.get("AWS_PROFILE") or "")
    return namespace_of("s3", str(endpoint), profile)


def _plain(options: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str | int]:
    return {name: options[name] for name in names if options.get(name) and isinstance(options[name], str | int)}


def _public_parts(connection_string: Any) -> list[str]:
    """What of an Azure connection string is no secret."""
    parts = str(connection_string or "").split(";")
    return [part for part in parts if part.startswith(("AccountName=", "BlobEndpoint=", "EndpointSuffix="))]


@functools.cache
def _machine_id() -> str:
    for place in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            if text := Path(place).read_text().strip():
                return text
        except OSError:
            continue
    return os.uname().nodename
