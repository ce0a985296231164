"""A gang's processes on one node: an actor in its bundle of the placement group, with the program as a plain child.

The program is no process of Ray's: it has the interpreter and the environment of its submission.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

import msgspec
import ray

from stoker.backends.ray.allocator.launch import (
    Rendezvous,
    SubmittedProgram,
    command_of,
    environment_of,
    log_path,
    there,
)
from stoker.backends.ray.allocator.supervisor import COULD_NOT_START, Launch
from stoker.scale.cluster.submissions import NodeSeat


class Runner:
    """Runs a gang's part of a node; each call has a thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._refusal = ""

    def meeting(self) -> Rendezvous:
        """An address at which the first node's processes can listen for the others'."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return Rendezvous(host=ray.util.get_node_ip_address(), port=probe.getsockname()[1])

    def start(
        self,
        program: SubmittedProgram,
        seats: tuple[NodeSeat, ...],
        rank: int,
        attempt: int,
        meeting: Rendezvous | None,
    ) -> str:
        """Starts the program; a second call changes nothing. Returns why it could not, empty if it could."""
        return self._begin(
            Launch(
                command=command_of(program, seats, rank, meeting),
                folder=program.folder,
                environ=environment_of(program, os.environ, ray.get_runtime_context().gcs_address),
                log=log_path(program, attempt, rank),
            )
        )

    def launch(self, launch: Launch) -> str:
        """Starts a command line with its environment as it is on this node; see :meth:`start`."""
        environ = there(launch.environ, os.environ, ray.get_runtime_context().gcs_address)
        return self._begin(msgspec.structs.replace(launch, environ=environ))

    def _begin(self, launch: Launch) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stoker.backends.ray.allocator.supervisor"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            self._send(msgspec.json.encode(launch))
            assert self._process.stdout is not None
            self._refusal = self._process.stdout.readline().decode(errors="replace").strip()
        return self._refusal

    def read_log(self, path: str, offset: int) -> bytes:
        """What a log of this node has from an offset on."""
        return read_log(path, offset)

    def forget_log(self, path: str) -> None:
        """Removes a log of this node."""
        with contextlib.suppress(OSError):
            os.unlink(path)

    def wait(self) -> tuple[int, str]:
        """Exit status and how the program ended, once it has."""
        if self._process is None:
            return COULD_NOT_START, "it was never started"
        status = self._process.wait()
        if self._refusal:
            return status, self._refusal
        return status, f"exit status {status}" if status else ""

    def stop(self, grace_s: float) -> None:
        """Asks the program to end, and kills it after the grace."""
        if self._process is not None and self._process.poll() is None:
            self._send(f"{grace_s}".encode())

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which `wait` says


def read_log(path: str, offset: int, most: int = 1 << 20) -> bytes:
    """A part of a file of this node; empty where there is no more."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(most)
    except OSError:
        return b""
