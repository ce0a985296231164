"""`stoker cache start`: this machine's cache as a worker that serves others, until SIGTERM drains it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stoker.cache.cluster.security import EVERYONE, Grant, create_secret
from stoker.cache.cluster.server import Server, ServerSettings
from stoker.cache.cluster.worker import WorkerSettings, open_mounts, run_worker
from stoker.cache.page_stores import page_store
from stoker.cache.rule_settings import CacheSettings
from stoker.cache.sources.opening import SourceSpec
from stoker.cli.cache.arguments import directory_of, parser, settings_of
from stoker.core.errors import ConfigError
from stoker.core.units import format_bytes
from stoker.ui.figures import write_plural

_EPILOG = """\
A worker reads stores only for its own mounts, with credentials of its own environment; clients never send any.
NAME=URL: `s3=s3://` (every bucket), `train=s3://bucket/train` (what is below), options after `?`
(`s3=s3://?endpoint_url=http://minio:9000`).
examples:
  stoker cache start --mount s3=s3://
  stoker cache start --dir /nvme/pages --size 2TB --listen 10.0.0.7:7070 --mount s3=s3:// \\
      --join etcd://etcd-1:2379/training"""


def main(argv: list[str]) -> int:
    """Serves; 0 after a drain of which all clients knew, 1 otherwise.

    Raises:
        ConfigError: an option is wrong.
    """
    arguments = _parser().parse_args(argv)
    settings = settings_of(arguments)
    specs, grants = _mounts(arguments.mount)
    listen = [f"unix://{directory_of(settings) / 'worker.sock'}", *(f"tcp://{each}" for each in arguments.listen)]
    pages = page_store(settings.directory, settings.limit_bytes, settings.rules)
    join = arguments.join or _alone(arguments.listen, listen[0])
    try:
        server = ServerSettings(
            node=arguments.node or _node(join, arguments.listen, listen[0]),
            listen=tuple(listen),
            advertise=tuple(f"tcp://{each}" for each in arguments.advertise),
            weight=arguments.weight,
            grants=grants,
            rules=settings.rules,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    worker = WorkerSettings(
        server=server,
        join=join,
        mounts=specs,
        secret_file=_secret(arguments, settings),
        state_dir=directory_of(settings),
    )

    def ready(running: Server) -> None:
        _announce(running, specs, pages.limit_bytes, settings, worker.secret_file)

    try:
        return 0 if run_worker(worker, pages, open_mounts(specs), ready) else 1
    except OSError as error:
        raise ConfigError(f"`--listen` must be addresses that are free, got {', '.join(listen)}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    made = parser("start", "Serves this machine's cache to others, until SIGTERM or Ctrl-C drains it.", _EPILOG)
    made.add_argument("--size", metavar="SIZE", help="most bytes on disk, such as 50GB")
    made.add_argument("--listen", action="append", default=[], metavar="HOST:PORT", help="an address; may be repeated")
    made.add_argument("--advertise", action="append", default=[], metavar="HOST:PORT", help="what others connect to")
    made.add_argument("--mount", action="append", default=[], metavar="NAME=URL", help="a store to read for clients")
    made.add_argument("--join", metavar="RING", help="static:a:7070,b:7070, file:///ring.json or etcd://h:2379/name")
    made.add_argument(
        "--secret-file", metavar="FILE", help="the cluster's secret (default: DIR/secret, made if missing)"
    )
    made.add_argument(
        "--node",
        metavar="ID",
        help="stable over restarts (default: its address in a static ring, else the host's name)",
    )
    made.add_argument(
        "--weight", type=float, default=1.0, metavar="W", help="capacity against other workers (default: 1)"
    )
    return made


def _mounts(texts: list[str]) -> tuple[dict[str, SourceSpec], tuple[Grant, ...]]:
    """The stores by name, and what clients may read of them."""
    if not texts:
        raise ConfigError("`--mount` must name a store that this worker reads, such as s3=s3://, got none")
    specs: dict[str, SourceSpec] = {}
    grants: list[Grant] = []
    for text in texts:
        name, equals, url = text.partition("=")
        parts = urlsplit(url)
        if not equals or not name or not parts.scheme or name in specs:
            raise ConfigError(f"`--mount` must be NAME=URL such as s3=s3://bucket, each name once, got {text!r}")
        options: dict[str, Any] = dict(parse_qsl(parts.query))
        specs[name] = spec = SourceSpec(parts.scheme, options)
        grants.append(Grant("*", spec.namespace, f"{parts.netloc}{parts.path}".rstrip("/")))
    return specs, tuple(grants) or EVERYONE


def _alone(listen: list[str], socket: str) -> str:
    """The membership of a worker that joins nobody."""
    return f"static:{listen[0] if listen else socket.removeprefix('unix://')}"


def _node(join: str, listen: list[str], socket: str) -> str:
    """A worker's id: in a static list its address, elsewhere the host's name."""
    if join.startswith("static:"):
        return listen[0] if listen else socket.removeprefix("unix://")
    return os.uname().nodename


def _secret(arguments: argparse.Namespace, settings: CacheSettings) -> Path | None:
    if arguments.secret_file:
        return Path(arguments.secret_file)
    if not arguments.listen:
        return None
    path = directory_of(settings) / "secret"
    try:
        create_secret(path)
    except FileExistsError:
        pass  # of an earlier start
    return path


def _announce(
    server: Server, specs: dict[str, SourceSpec], limit_bytes: int, settings: CacheSettings, secret: Path | None
) -> None:
    lines = [
        f"stoker cache: {server.settings.node} serves {write_plural(len(specs), 'mount')} ({', '.join(specs)}) "
        f"from {directory_of(settings)}, up to {format_bytes(limit_bytes)}",
        *(f"  listens on {address}" for address in server.addresses),
    ]
    if secret is not None:
        lines.append(f"  clients need the secret of {secret}, in a file of mode 600")
    print("\n".join([*lines, "  SIGTERM or Ctrl-C drains it"]), file=sys.stderr, flush=True)
