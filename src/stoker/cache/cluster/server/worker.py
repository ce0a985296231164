"""A cache worker as a process: opens the store and the mounts, serves, and drains on SIGTERM or Ctrl-C."""

from __future__ import annotations

import gc
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from stoker.cache.cluster.client.client import PeerClient, for_node
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.cluster.membership.membership import replace_file
from stoker.cache.cluster.messages.handshake import Identity
from stoker.cache.cluster.server.protocols import Mount
from stoker.cache.cluster.server.server import DRAIN_S, Server, ServerSettings
from stoker.cache.protocols import Pages
from stoker.cache.sources.opening import SourceSpec, open_source
from stoker.wire.secrets import DEFAULT_IDENTITY, load_secrets

SWITCH_S = 0.0001
"""How long a computing thread may hold the GIL while another serves a hit (Python's default is 5 ms). With a busy
thread of pure Python, the p99 of 4 KiB hits was 3.3 ms at 0.5 ms, and 0.5 ms at this value (15,000 reads).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Settings of a worker process.

    Attributes:
        server: its addresses, id and limits.
        join: membership, as ``--join`` takes it.
        mounts: stores that it reads for clients, by name.
        secret_file: needed where it listens on TCP.
        identity: that it uses with other workers.
        state_dir: where the last ring is kept.
        tls_ca: certificate authorities of the other workers.
        users: that may connect to its Unix socket, besides its own user and root.
        drain_s: longest time it drains before it ends.
    """

    server: ServerSettings
    join: str
    mounts: Mapping[str, SourceSpec] = field(default_factory=dict[str, SourceSpec])
    secret_file: str | None = None
    identity: str = DEFAULT_IDENTITY
    state_dir: Path | None = None
    tls_ca: str | None = None
    users: frozenset[int] = frozenset()
    drain_s: float = DRAIN_S


def node_of(directory: Path) -> str:
    """The id of the worker whose pages are in a directory; stored there, so that a restart keeps its place.

    Args:
        directory: of the page store; made where it is missing.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / "node"
    try:
        known = path.read_text(encoding="utf-8").strip()
    except OSError:
        known = ""
    if not known:
        known = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        replace_file(path, f"{known}\n".encode())
    return known


def open_mounts(specs: Mapping[str, SourceSpec]) -> list[Mount]:
    """The mounts of a worker, each with a separate source."""
    return [Mount(name, spec.namespace, open_source(spec)) for name, spec in specs.items()]


def run_worker(
    settings: WorkerSettings, pages: Pages, mounts: list[Mount], ready: Callable[[Server], None] | None = None,
    directories: Callable[[], list[dict[str, Any]]] = list,
) -> bool:  # fmt: skip
    """Serves until SIGTERM or SIGINT, then drains; whether all clients knew of it in time. For the main thread.

    Args:
        settings: of the worker.
        pages: what it serves; the caller closes it.
        mounts: what it reads, see :func:`open_mounts`.
        ready: is called once it serves.
        directories: tells the state of each directory of the pages.
    """
    ending = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    # A signal may interrupt any thread, and this one, which has to act on it, would keep sleeping.
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    wakeup = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        with _Opened(settings, pages, mounts, directories) as server:
            server.start()
            gc.collect()
            gc.freeze()  # imported objects stay; collecting among them (68,000 objects: tens of ms) would delay hits
            if ready is not None:
                ready(server)
            while not ending.is_set():
                reading.recv(1)
            return server.drain(settings.drain_s)
    finally:
        gc.unfreeze()
        sys.setswitchinterval(switch_s)
        signal.set_wakeup_fd(wakeup)
        reading.close()
        writing.close()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Opened:
    """The server with what it needs, closed in order."""

    def __init__(
        self, settings: WorkerSettings, pages: Pages, mounts: list[Mount],
        directories: Callable[[], list[dict[str, Any]]],
    ) -> None:  # fmt: skip
        known = None if settings.secret_file is None else load_secrets(settings.secret_file)
        node = settings.server.node
        identity = Identity(settings.identity, known, node, users=settings.users)
        self._membership = open_membership(settings.join, settings.state_dir)
        asking = ClientSettings(
            join=settings.join, secret_file=settings.secret_file, identity=settings.identity, tls_ca=settings.tls_ca
        )
        self._peers: PeerClient = for_node(asking, node, self._membership)
        self._server = Server(pages, mounts, self._membership, identity, settings.server, self._peers, directories)

    def __enter__(self) -> Server:
        return self._server

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._peers.close()
        self._membership.close()
