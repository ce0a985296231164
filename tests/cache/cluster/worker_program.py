"""A worker process under test: serves local files, slowly if told so, and notes each read of the store."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from stoker.cache.cluster.server.grants import EVERYONE, Grant
from stoker.cache.cluster.server.protocols import Described, Mount
from stoker.cache.cluster.server.server import Server, ServerSettings
from stoker.cache.cluster.server.worker import WorkerSettings, run_worker
from stoker.cache.sources.opening import SourceSpec, open_source
from stoker.cache.sources.source import Source
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.cache.versions import Version

FILES = SourceSpec("file")


class Plan(msgspec.Struct, kw_only=True):
    """What the program does."""

    node: str
    join: str
    listen: tuple[str, ...]
    directory: str
    reads: str
    """Path of the file to which each read of the store is noted."""
    secret_file: str | None = None
    delay_s: float = 0.0
    drain_s: float = 5.0
    hot_per_s: float = 1e9
    grants: tuple[tuple[str, str, str], ...] = ()
    state_dir: str | None = None
    users: tuple[int, ...] = ()


class NotedSource:
    """A source whose reads take a while and leave a line in a file that processes share."""

    def __init__(self, source: Source, reads: Path, delay_s: float) -> None:
        self._source = source
        self._fd = os.open(reads, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._delay_s = delay_s

    def info(self, path: str) -> Described:
        return self._source.info(path)

    def read(self, path: str, start: int, end: int, version: Version) -> bytes:
        os.write(self._fd, f"{path} {start} {end}\n".encode())
        time.sleep(self._delay_s)  # a distant store
        return self._source.read(path, start, end, version)


def main(text: bytes, told: Connection) -> None:
    """Sends its addresses once it serves, and in the end whether all clients knew."""
    plan = msgspec.json.decode(text, type=Plan)
    mount = Mount("files", FILES.namespace, NotedSource(open_source(FILES), Path(plan.reads), plan.delay_s))
    settings = WorkerSettings(
        server=ServerSettings(
            node=plan.node,
            listen=plan.listen,
            grants=tuple(Grant(*one) for one in plan.grants) or EVERYONE,
            hot_per_s=plan.hot_per_s,
        ),
        join=plan.join,
        secret_file=None if plan.secret_file is None else Path(plan.secret_file),
        state_dir=None if plan.state_dir is None else Path(plan.state_dir),
        drain_s=plan.drain_s,
        users=frozenset(plan.users),
    )

    def ready(server: Server) -> None:
        told.send(server.addresses)

    with PageStore(Path(plan.directory), StoreSettings(limit_bytes=1 << 30, keep_free_frac=0.0)) as pages:
        aware = run_worker(settings, pages, [mount], ready)
    told.send(aware)
