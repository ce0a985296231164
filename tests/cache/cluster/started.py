"""Workers made by `stoker cache start`, as people make them, over files that stand for the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.wire.secrets import create_secret
from tests.cache.cluster.etcd_server import free_port


class Started:
    """Workers on the loopback; commands that join them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "its-secret"
        create_secret(self.secret)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
        self.environ = {**clean, "STOKER_CACHE_RULES": "file://* 60s"}
        self.workers: dict[str, subprocess.Popen[str]] = {}
        self.told: dict[str, list[str]] = {}
        self.clients: list[PeerClient] = []

    def nodes(self, count: int) -> tuple[list[str], str]:
        """Addresses, and the static ring of them."""
        found = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        return found, f"static:{','.join(found)}"

    def directory(self, node: str) -> Path:
        """Of a worker that was given none."""
        return self.folder / f"pages-{node.rpartition(':')[2]}"

    def start(self, node: str, join: str, *options: str, dirs: tuple[Path, ...] = ()) -> None:
        """Starts a worker and does not wait for it."""
        words = [
            *("cache", "start", "--mount", "files=file://", "--listen", node, "--join", join),
            *("--secret-file", str(self.secret)),
            *(word for path in dirs or (self.directory(node),) for word in ("--dir", str(path))),
            *(options if "--size" in options else ("--size", "64MiB", *options)),
        ]
        command = [sys.executable, "-m", "stoker", *words]
        self.workers[node] = subprocess.Popen(command, env=self.environ, text=True, stderr=subprocess.PIPE)

    def wait(self, node: str) -> list[str]:
        """What a worker says once it serves."""
        stderr = self.workers[node].stderr
        assert stderr is not None
        lines: list[str] = []
        for line in stderr:
            lines.append(line.rstrip())
            if "drains it" in line:
                return lines
        raise AssertionError(f"a worker did not start: {lines}")

    def start_all(self, count: int, *options: str) -> tuple[list[str], str]:
        """Workers of a static ring that serve."""
        nodes, join = self.nodes(count)
        for node in nodes:
            self.start(node, join, *options)
        for node in nodes:
            self.wait(node)
        return nodes, join

    def end(self, node: str) -> str:
        """Ends a worker as a service manager does; what it says."""
        worker = self.workers.pop(node)
        worker.send_signal(signal.SIGTERM)
        said = worker.communicate(timeout=40)[1]
        assert worker.returncode in (0, 1), said
        return said

    def kill(self, node: str) -> None:
        """Ends it at once."""
        worker = self.workers.pop(node)
        worker.kill()
        worker.communicate(timeout=20)

    def client(self, join: str, **changes: object) -> PeerClient:
        """A program of the cluster."""
        changes = {"timeout_s": 8.0, "secret_file": self.secret, **changes}
        self.clients.append(PeerClient(ClientSettings(join=join, **changes)))  # type: ignore[arg-type]
        return self.clients[-1]

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the cache."""
        return self._stoker("cache", *words)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs a program."""
        return self._stoker("run", *words)

    def _stoker(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def close(self) -> None:
        """Ends everything."""
        for client in self.clients:
            client.close()
        for worker in self.workers.values():
            worker.kill()
        for worker in self.workers.values():
            worker.communicate(timeout=20)
