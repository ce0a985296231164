# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false
"""Which store a filesystem's options mean: the public options that decide it, and no others."""

from __future__ import annotations

import configparser
import functools
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsspec.config import apply_config

from stoker.cache.names import namespace_of
from stoker.cache.sources.fsspec_registry import filesystem_class
from stoker.core.processes.forking import per_process

ALIASES = {"s3a": "s3", "local": "file", "gcs": "gs", "https": "http"}
"""Other names of a protocol; the same object must have one name."""

# What of the options of any filesystem decides which object a path means. The rest is secret or a matter of tuning.
_PLACES = ("endpoint", "endpoint_url", "endpoint_override", "host", "port", "base_url", "server_uri", "url")
_ACCOUNTS = ("account_name", "tenant_id", "project", "namespace", "org", "repo", "instance", "username", "fo")
_S3_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AZURE = {"account_name": "AZURE_STORAGE_ACCOUNT_NAME", "connection_string": "AZURE_STORAGE_CONNECTION_STRING"}
_VARIABLES = {
    "gs": {"endpoint_url": "STORAGE_EMULATOR_HOST"},
    "hf": {"endpoint": "HF_ENDPOINT"},
    **dict.fromkeys(("az", "abfs", "abfss"), _AZURE),
}
"""Per protocol: environment variables that its filesystem reads for a missing option."""


@per_process
def _process_id() -> str:
    """Unique in this process only; a later one may get the same number."""
    return uuid.uuid4().hex


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
        return namespace_of("memory", _process_id())  # a forked child has its own copy of every object
    variables = _VARIABLES.get(protocol, {})
    told = {option: os.environ[name] for option, name in variables.items() if os.environ.get(name)}
    options = {**told, **_with_configuration(protocol, options)}
    places = [str(value) for value in _plain(options, _PLACES).values()]
    accounts = [f"{name}={value}" for name, value in _plain(options, _ACCOUNTS).items()]
    accounts += _public_parts(options.get("connection_string"))
    return namespace_of(protocol, ":".join(places), ",".join(accounts))


def _s3_namespace(options: Mapping[str, Any]) -> str:
    options = _with_configuration("s3", options)
    client_options: Mapping[str, Any] = options.get("client_kwargs") or {}
    endpoint: Any = options.get("endpoint_url") or client_options.get("endpoint_url") or ""
    if not endpoint:
        endpoint = next((os.environ[name] for name in _S3_VARIABLES if os.environ.get(name)), "")
    # A profile may name an endpoint.
    profile = str(options.get("profile") or os.environ.get("AWS_PROFILE") or "")
    return namespace_of("s3", str(endpoint or _configured_endpoint(profile)), profile)


def _with_configuration(protocol: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options with those that fsspec's own files and variables (``FSSPEC_S3_ENDPOINT_URL``) add to them."""
    try:
        return apply_config(filesystem_class(protocol), dict(options))
    except (ImportError, ValueError):
        return options  # its filesystem cannot be built either


def _configured_endpoint(profile: str) -> str:
    """The endpoint that the user's AWS configuration gives a profile, as botocore finds it; empty for the usual one."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return ""  # botocore does not take it either
    section = "default" if profile in ("", "default") else f"profile {profile}"
    services = f"services {parser.get(section, 'services', fallback='')}"
    for line in parser.get(services, "s3", fallback="").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "endpoint_url":
            return value.strip()
    return parser.get(section, "endpoint_url", fallback="").strip()


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
