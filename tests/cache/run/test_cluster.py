"""`stoker run --cache --cache-join`: programs read through the workers that `stoker cache start` made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.store.layout import StoreSettings
from stoker.wire.secrets import create_secret
from tests.cache.cluster.etcd_server import free_port
from tests.cache.s3_server import KEY, SECRET, S3Server
from tests.warm import programs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

OBJECTS, OBJECT_BYTES = 6, 300_000
READ = f"""
import multiprocessing, pickle, sys, fsspec
def read(fs):
    for number in range({OBJECTS}):
        assert fs.cat_file(f"cluster/{{sys.argv[1]}}/{{number}}") == bytes([number]) * {OBJECT_BYTES}
if __name__ == "__main__":
    fs = fsspec.filesystem("s3")
    read(pickle.loads(pickle.dumps(fs)))
    for method in sys.argv[2:]:
        child = multiprocessing.get_context(method).Process(target=read, args=(fs,))
        child.start()
        child.join()
        assert child.exitcode == 0
"""


class Cluster:
    """Two workers on the loopback, each with a directory of its own."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.folder, self.environ = folder, environ
        self.secret = folder / "its-secret"
        create_secret(self.secret)
        self.nodes = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.join = f"static:{','.join(self.nodes)}"
        self.workers = [self._start(number) for number in range(2)]
        for worker in self.workers:
            assert worker.stderr is not None
            assert any("drains it" in line for line in worker.stderr), "a worker did not start"
        settings = ClientSettings(join=self.join, secret_file=self.secret, timeout_s=8.0)
        self.client = PeerClient(settings)

    def _start(self, number: int) -> subprocess.Popen[str]:
        words = [
            *("cache", "start", "--dir", str(self.directory(number)), "--size", "64MiB", "--mount", "s3=s3://"),
            *("--listen", self.nodes[number], "--join", self.join, "--secret-file", str(self.secret)),
        ]
        return subprocess.Popen([sys.executable, "-m", "stoker", *words], env=self.environ, text=True, stderr=-1)

    def directory(self, number: int) -> Path:
        """Of a worker."""
        return self.folder / f"worker-{number}"

    def told(self, name: str) -> list[Any]:
        """A count of each worker."""
        found = [self.client.status(node) for node in self.nodes]
        return [status[name] for status in found if status is not None]

    def run(self, directory: Path, *options: str, words: str = "a") -> subprocess.CompletedProcess[str]:
        """Reads all objects of a folder in a program with its pages in a directory, and in children of it."""
        (self.folder / "program.py").write_text(READ)
        rules = ("--cache-rules", "s3://* immutable", "--cache-size", "64MiB")
        program = ("program.py", *words.split())
        return programs.run(
            [sys.executable, "-m", "stoker", "run", f"--cache={directory}", *rules, *options, *program],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip

    def close(self) -> None:
        self.client.close()
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            worker.communicate(timeout=30)


@pytest.fixture(scope="module")
def cluster(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    s3_server.client.create_bucket(Bucket="cluster")
    for name in (f"{folder}/{number}" for folder in "ab" for number in range(OBJECTS)):
        s3_server.client.put_object(Bucket="cluster", Key=name, Body=bytes([int(name[-1])]) * OBJECT_BYTES)
    keys = {"AWS_ENDPOINT_URL": s3_server.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    running = Cluster(tmp_path_factory.mktemp("cluster"), {**clean, **keys, "AWS_DEFAULT_REGION": "us-east-1"})
    yield running
    running.close()


@pytest.mark.slow("programs of three start methods, one after another")
def test_nodes_read_through_the_workers_and_the_store_is_read_once(cluster: Cluster, tmp_path: Path) -> None:
    joined = ("--cache-join", cluster.join, "--cache-secret-file", str(cluster.secret))
    for node, words in (("one", "a fork spawn"), ("other", "a")):
        done = cluster.run(tmp_path / node, *joined, words=words)
        assert done.returncode == 0, done.stderr
        assert "1.72 MiB from other nodes · 0 B from stores in 0 requests" in done.stderr
        # The workers themselves, for the first node alone.
        assert sum(cluster.told("fetched_bytes")) == OBJECTS * OBJECT_BYTES


def test_a_program_that_shares_a_workers_directory_does_not_wait_for_itself(cluster: Cluster) -> None:
    joined = ("--cache-join", cluster.join, "--cache-secret-file", str(cluster.secret))
    began_s = time.monotonic()
    done = cluster.run(cluster.directory(0), *joined, words="b")
    assert done.returncode == 0, done.stderr
    assert "1.72 MiB from other nodes · 0 B from stores in 0 requests" in done.stderr
    assert time.monotonic() - began_s < StoreSettings().filling_wait_s


def test_status_shows_the_ring(cluster: Cluster) -> None:
    def status(join: str, *options: str, ends_with: int = 0) -> str:
        words = ("cache", "status", "--join", join, "--secret-file", str(cluster.secret), *options)
        done = subprocess.run(
            [sys.executable, "-m", "stoker", *words],
            env=cluster.environ, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == ends_with
        return done.stdout

    lines = status(cluster.join).splitlines()
    assert lines[0].startswith("Ring of 2 nodes")
    assert [line.split()[:3] for line in lines[3:5]] == [[node, "1", "alive"] for node in sorted(cluster.nodes)]
    gone = f"127.0.0.1:{free_port()}"
    told = json.loads(status(f"{cluster.join},{gone}", "--json", ends_with=1))
    assert {node["node"]: node["state"] for node in told["nodes"]} == {
        **dict.fromkeys(cluster.nodes, "alive"),
        gone: "lost",
    }


def test_a_ring_that_nobody_tells_of_is_said_and_costs_no_read(cluster: Cluster, tmp_path: Path) -> None:
    nobody = f"etcd://127.0.0.1:{free_port()}/ring"
    done = cluster.run(tmp_path / "a", "--cache-join", nobody, "--cache-secret-file", str(cluster.secret))
    assert done.returncode == 0, done.stderr
    assert f"stoker: cache: the workers of `{nobody}` are unknown" in done.stderr
    assert "0 B from stores" not in done.stderr


def test_a_ring_on_tcp_needs_its_secret(cluster: Cluster, tmp_path: Path) -> None:
    done = cluster.run(tmp_path / "a", "--cache-join", cluster.join)
    assert done.returncode == 2
    assert "`cache-secret-file` must name the cluster's secret" in done.stderr
    done = cluster.run(tmp_path / "a", "--cache-join", "static:a")
    assert done.returncode == 2
    assert "`--join` must be static:" in done.stderr
