"""Real worker processes and real files for the cluster's tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import msgspec
import numpy as np

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.names import ObjectName
from stoker.cache.sources.opening import open_source
from stoker.cache.versions import Version
from stoker.wire import secrets
from tests.cache.cluster.etcd_server import free_port, stop_process
from tests.cache.cluster.worker_program import FILES, Plan, main

# A server that has imported everything forks each worker in milliseconds.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["pytest", "tests.cache.cluster.worker_program"])


class Nodes:
    """Workers of one cluster, each a process; clients of this process; files that stand for the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reads = folder / "reads"
        self.secret_file = folder / "secret"
        secrets.create_secret(self.secret_file)
        self.processes: dict[str, ForkServerProcess] = {}
        self._told: dict[str, Connection] = {}
        self.plans: dict[str, Plan] = {}
        self.clients: list[PeerClient] = []
        self.source = open_source(FILES)

    def start_static(self, count: int, *, unix: bool = False, **changes: object) -> str:
        """Workers on a static list; returns the text for ``join``."""
        names = [str(self.folder / f"{n}.sock") if unix else f"127.0.0.1:{free_port()}" for n in range(count)]
        join = "static:" + ",".join(names)
        for name in names:
            address = f"unix://{name}" if unix else f"tcp://{name}"
            self.launch(name, join, (address,), **changes)
        for name in names:
            self.wait(name)
        return join

    def launch(self, node: str, join: str, listen: tuple[str, ...], **changes: object) -> None:
        """Starts a worker and does not wait for it."""
        directory = self.folder / f"store-{len(self.plans)}"
        plan = Plan(
            node=node, join=join, listen=listen, directory=str(directory), reads=str(self.reads),
            secret_file=str(self.secret_file), **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        self.plans[node] = plan
        self.relaunch(node)

    def relaunch(self, node: str) -> None:
        self._told[node], sending = _processes.Pipe(duplex=False)
        process = _processes.Process(target=main, args=(msgspec.json.encode(self.plans[node]), sending))
        process.start()
        sending.close()
        self.processes[node] = process

    def wait(self, node: str) -> tuple[str, ...]:
        """Waits until a worker serves; its addresses."""
        return self._told[node].recv()

    def client(self, join: str, **changes: object) -> PeerClient:
        # Patient, since machines that run tests are busy; tests about time-outs set their own.
        changes = {"timeout_s": 8.0, "secret_file": self.secret_file, **changes}
        settings = ClientSettings(join=join, **changes)  # type: ignore[arg-type]
        self.clients.append(PeerClient(settings))
        return self.clients[-1]

    def file(self, name: str, size: int, seed: int = 0) -> tuple[ObjectName, Version, bytes]:
        """A file of random bytes in the store."""
        path = self.folder / name
        data = np.random.default_rng(seed).bytes(size)
        path.write_bytes(data)
        return ObjectName(FILES.namespace, str(path)), self.source.info(str(path)).version, data

    def store_reads(self) -> Counter[str]:
        """How often each page was read from the store by any worker."""
        return Counter(self.reads.read_text().splitlines()) if self.reads.exists() else Counter()

    def signal(self, node: str, number: signal.Signals) -> None:
        pid = self.processes[node].pid
        assert pid is not None
        os.kill(pid, number)

    def stop(self, node: str) -> None:
        pid = self.processes[node].pid
        assert pid is not None
        stop_process(pid)

    def go_on(self, node: str) -> None:
        self.signal(node, signal.SIGCONT)

    def kill(self, node: str) -> None:
        self.processes[node].kill()
        self.processes[node].join()

    def end(self, node: str) -> bool:
        """Ends a worker as a service manager does; whether its clients knew."""
        self.signal(node, signal.SIGTERM)
        aware = self._told[node].recv()
        self.processes[node].join(20)
        assert self.processes[node].exitcode == 0
        return aware

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for process in self.processes.values():
            process.kill()
        for node, process in self.processes.items():
            process.join()
            process.close()
            self._told[node].close()


def ranges_of(size: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(size, start + step)) for start in range(0, size, step)]


def fetch(
    client: PeerClient, name: ObjectName, version: Version | None, ranges: list[tuple[int, int]]
) -> tuple[list[bool], list[bytes]]:
    buffers = [memoryview(bytearray(end - start)) for start, end in ranges]
    came = client.fetch(name, version, ranges, buffers)
    return came, [bytes(buffer) for buffer in buffers]
