"""A real etcd on free ports of the loopback interface, in a folder of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from stoker.cache.cluster.membership.etcd import Etcd
from stoker.core.errors import MembershipError
from tests.waiting import await_that

BINARY = shutil.which("etcd")
MISSING = "no `etcd` on this machine; on Debian: apt-get install etcd-server"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def stop_process(pid: int) -> None:
    """SIGSTOP, and the moment at which every thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")

    def has_stopped() -> bool:
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir())

    await_that("all its threads stand still", has_stopped)


class EtcdServer:
    """Starts etcd; it can be killed, stopped, and started again on the same ports and data, or without its data."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._peer = f"127.0.0.1:{free_port()}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert BINARY is not None
        urls = [f"http://{self.endpoint}", f"http://{self._peer}"]
        command = [
            BINARY, "--name", "test", "--data-dir", str(self._folder), "--listen-client-urls", urls[0],
            "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
            "--initial-cluster", f"test={urls[1]}", "--unsafe-no-fsync",
        ]  # fmt: skip
        if b"unsafe-no-fsync" not in subprocess.run([BINARY, "--help"], capture_output=True, check=False).stdout:
            command.pop()
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"} if os.uname().machine == "aarch64" else None
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        def answers() -> bool:
            client = Etcd([self.endpoint])
            try:
                client.put("started", b"")
                return True
            except MembershipError:
                return False
            finally:
                client.close()

        await_that("etcd answers", answers)

    def stop(self) -> None:
        assert self._process is not None
        stop_process(self._process.pid)

    def go_on(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_data(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)
