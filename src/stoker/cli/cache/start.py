"""`stoker cache start`: this machine's cache as a worker that serves others, until SIGTERM drains it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from msgspec.structs import replace

from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.membership.ring import MAX_WEIGHT
from stoker.cache.cluster.server.http_door import DoorMount
from stoker.cache.cluster.server.http_sidecar import DoorPlan, door_process
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.cluster.server.worker import WorkerSettings, node_of, open_mounts, run_worker
from stoker.cache.directories import Directories, open_directories
from stoker.cache.page_stores import note_asked
from stoker.cache.policies import Rule
from stoker.cache.settings import CacheSettings
from stoker.cache.sources.opening import SourceSpec
from stoker.cli.arguments import Parser, amount
from stoker.cli.cache.arguments import parser, settings_of, size_of
from stoker.cli.cache.mounts import Mounted, grants_of, mounts_of
from stoker.core.errors import CacheError, ConfigError
from stoker.core.extras import require
from stoker.core.units import format_bytes, format_count
from stoker.wire.secrets import create_secret
from stoker.wire.tls import Certificate

_EPILOG = """\
A worker reads stores only for its own mounts, with the credentials of its environment; clients never send any.
NAME=URL: `s3=s3://` (every bucket), `train=s3://bucket/train` (what is below), options after `?`
(`s3=s3://?endpoint_url=http://minio:9000`).
examples:
  stoker cache start --mount s3=s3://
  stoker cache start --dir /nvme0/pages --dir /nvme1/pages --size 2TB --listen 10.0.0.7:7070 --mount s3=s3:// \\
      --join etcd://etcd-1:2379/training"""


def main(argv: list[str]) -> int:
    """Serves; 0 after a drain that reached all clients and transferred all pinned pages, 1 otherwise.

    Raises:
        ConfigError: an option is invalid.
    """
    arguments = _parser().parse_args(argv)
    mounts = mounts_of(arguments.mount)
    specs = {name: mounted.spec for name, mounted in mounts.items()}
    directories, rules = _directories(arguments)
    listen = [f"unix://{directories.first / 'worker.sock'}", *(f"tcp://{each}" for each in arguments.listen)]
    join = arguments.join or _alone(arguments.listen, listen[0])
    try:
        server = ServerSettings(
            node=arguments.node or _node(join, arguments.listen, listen[0], directories),
            listen=tuple(listen),
            advertise=tuple(f"tcp://{each}" for each in arguments.advertise),
            weight=arguments.weight,
            grants=grants_of(arguments.grant, mounts),
            rules=rules,
            certificate=_certificate(arguments),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    worker = WorkerSettings(
        server=server,
        join=join,
        mounts=specs,
        secret_file=_secret(arguments, directories),
        state_dir=directories.first,
        tls_ca=arguments.tls_ca or None,
    )

    running: list[Server] = []
    beside = contextlib.ExitStack()

    def ready(started: Server) -> None:
        running.append(started)
        door = _door(arguments, worker, mounts, directories)
        _announce(started, specs, directories, worker.secret_file)
        if door is not None:
            protocol = "https" if door.certificate else "http"
            address = f"{protocol}://{beside.enter_context(door_process(door))}"
            print(
                f"  HTTP at {address}: /healthz, and with the token of {door.token_file} the rest",
                file=sys.stderr,
            )
        print("  SIGTERM or Ctrl-C drains it", file=sys.stderr, flush=True)

    try:
        with beside:
            done = run_worker(worker, directories.pages, open_mounts(specs), ready, directories.states)
        handed, planned = running[0].handed_over
        if planned:
            print(f"stoker cache: handed over {handed} of {format_count(planned, 'pinned page')}", file=sys.stderr)
        return 0 if done else 1
    except OSError as error:
        raise ConfigError(f"`--listen` must be addresses that are free, got {', '.join(listen)}: {error}") from None


def _parser() -> Parser:
    description = "Serves this machine's cache to others, until SIGTERM or Ctrl-C drains it."
    made = parser("start", description, _EPILOG, several=True)
    made.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="SIZE",
        help="most bytes on disk, such as 50GB: once for all directories, which share it evenly, or once for each",
    )
    made.add_argument("--listen", action="append", default=[], metavar="HOST:PORT", help="an address; may be repeated")
    made.add_argument(
        "--advertise", action="append", default=[], metavar="HOST:PORT", help="the address that others connect to"
    )
    made.add_argument("--mount", action="append", default=[], metavar="NAME=URL", help="a store to read for clients")
    made.add_argument(
        "--grant",
        action="append",
        default=[],
        metavar="WHO=MOUNT[/PATH]",
        help="who may read what, by the names in the secret file; once one is given, all else is denied",
    )
    made.add_argument("--join", metavar="RING", help="static:a:7070,b:7070, file:///ring.json or etcd://h:2379/name")
    made.add_argument(
        "--secret-file", metavar="FILE", help="the cluster's secret (default: DIR/secret, made if missing)"
    )
    made.add_argument(
        "--http", metavar="HOST:PORT", help="serve curl and Prometheus over HTTP: objects, /metrics, /healthz"
    )
    made.add_argument(
        "--http-host", action="append", default=[], metavar="NAME", help="a host name under which HTTP is reached"
    )
    made.add_argument(
        "--http-token-file", metavar="FILE", help="the HTTP token (default: DIR/http-token, made if missing)"
    )
    made.add_argument("--tls-cert", metavar="FILE", help="encrypt TCP: this worker's certificate (PEM)")
    made.add_argument("--tls-key", metavar="FILE", help="its private key (default: in the same file)")
    made.add_argument("--tls-ca", metavar="FILE", help="certificate authorities of the other workers")
    made.add_argument(
        "--node",
        metavar="ID",
        help="stable over restarts (default: its address in a static ring, else one that is kept in DIR)",
    )
    made.add_argument(
        "--weight",
        type=amount(0.001, MAX_WEIGHT),
        default=1.0,
        metavar="W",
        help="capacity against other workers (default: 1)",
    )
    return made


def _certificate(arguments: argparse.Namespace) -> Certificate | None:
    cert, key, ca = arguments.tls_cert, arguments.tls_key, arguments.tls_ca
    if bool(cert) != bool(ca) or (key and not cert):
        got = ", ".join(name for name, value in (("--tls-cert", cert), ("--tls-key", key), ("--tls-ca", ca)) if value)
        raise ConfigError(f"`--tls-cert` must come with `--tls-ca`, by which workers know each other, got {got} alone")
    return Certificate(cert=Path(cert), key=Path(key) if key else None) if cert else None


def _directories(arguments: argparse.Namespace) -> tuple[Directories, tuple[Rule, ...]]:
    """The directories with the requested sizes, and the rules of paths."""
    paths: list[str | None] = list(dict.fromkeys(arguments.dir or [None]))
    sizes = [size_of("--size", text) for text in arguments.size]
    if len(sizes) == 1:
        sizes = [sizes[0] // len(paths)] * len(paths)
    if sizes and len(sizes) != len(paths):
        raise ConfigError(
            f"`--size` must be given once, or once for each --dir, got {len(sizes)} sizes for {len(paths)} directories"
        )
    asked: list[CacheSettings] = []
    for number, path in enumerate(paths):
        settings = settings_of(argparse.Namespace(dir=path, size=None), note=False)
        asked.append(replace(settings, limit_bytes=sizes[number]) if sizes else settings)
        # A directory that cannot be written is named as such in a moment.
        with contextlib.suppress(CacheError, OSError):
            note_asked(asked[-1])
    return open_directories(asked), asked[0].all_rules  # the same for each directory


def _alone(listen: list[str], socket: str) -> str:
    """The membership of a worker without a cluster."""
    return f"static:{listen[0] if listen else socket.removeprefix('unix://')}"


def _node(join: str, listen: list[str], socket: str, directories: Directories) -> str:
    """A worker's id: in a static list its address, otherwise one that is stored in its directory."""
    if join.startswith("static:"):
        return listen[0] if listen else socket.removeprefix("unix://")
    return node_of(directories.first)


def _secret(arguments: argparse.Namespace, directories: Directories) -> str | None:
    if arguments.secret_file:
        return arguments.secret_file
    if not arguments.listen:
        return None
    return str(_made(directories.first / "secret"))


def _made(path: Path) -> Path:
    """A file with a secret, made unless there is one of an earlier start."""
    with contextlib.suppress(FileExistsError):
        create_secret(path)
    return path


def _door(
    arguments: argparse.Namespace, worker: WorkerSettings, mounts: dict[str, Mounted], directories: Directories
) -> DoorPlan | None:
    """The HTTP endpoint, if requested."""
    if not arguments.http:
        return None
    require("prometheus_client", extra="cache")
    host, colon, port = arguments.http.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"`--http` must be HOST:PORT such as 127.0.0.1:8080, got {arguments.http!r}")
    path = Path(arguments.http_token_file) if arguments.http_token_file else _made(directories.first / "http-token")
    return DoorPlan(
        host=host.strip("[]"),
        port=int(port),
        hosts=tuple(arguments.http_host),
        mounts={name: DoorMount(mounted.spec.namespace, mounted.root) for name, mounted in mounts.items()},
        token_file=path,
        client=ClientSettings(join=worker.join, secret_file=worker.secret_file, tls_ca=worker.tls_ca),
        certificate=worker.server.certificate,
        node=worker.server.node,
    )


def _announce(server: Server, specs: dict[str, SourceSpec], directories: Directories, secret: str | None) -> None:
    usable = [str(each.path) for each in directories.directories if each.store is not None]
    lines = [
        f"stoker cache: {server.settings.node} serves {format_count(len(specs), 'mount')} ({', '.join(specs)}) "
        f"from {' and '.join(usable)}, up to {format_bytes(directories.limit_bytes)}",
        *(f"  continues without {each.path}: {each.fault}" for each in directories.directories if each.store is None),
        *(f"  listens on {address}" for address in server.addresses),
    ]
    if secret is not None:
        lines.append(f"  clients need the secret of {secret}, in a file of mode 600")
    print("\n".join(lines), file=sys.stderr, flush=True)
