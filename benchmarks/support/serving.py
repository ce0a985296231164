"""`stoker serve run` and its peers as processes of benchmarks, and the models that they serve."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stoker.backends.process_tree import descendants

_PROGRAMS = Path(__file__).parents[1] / "programs"
MODELS = _PROGRAMS / "served_models.py"
"""Models of torch, by functions of this file."""
WIDTH = 784
ENVIRON = os.environ | {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Served:
    """A server.

    Attributes:
        process: of it.
        port: at which it listens.
    """

    process: subprocess.Popen[bytes]
    port: int

    @property
    def pids(self) -> list[int]:
        """Of all its processes."""
        return [self.process.pid, *descendants(self.process.pid)]

    def status(self) -> dict[str, object]:
        """What `stoker serve` says of its only model."""
        return status(self.port)


def status(port: int) -> dict[str, object]:
    """What the `stoker serve` at a port says of its only model."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stoker/status") as answer:
        (found,) = json.load(answer).values()
        return found


@contextlib.contextmanager
def server(command: Sequence[str], folder: Path, ready: str, wait_s: float = 120.0) -> Iterator[Served]:
    """A server with ``PORT`` in its command replaced; ``ready`` is the path that answers once it serves."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [word.replace("PORT", str(port)) for word in command]
    with (folder / f"{port}.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, env=ENVIRON, cwd=folder, start_new_session=True)
    try:
        deadline_s = time.monotonic() + wait_s
        while not _answers(port, ready):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError((folder / f"{port}.log").read_text()[-2000:])
            time.sleep(0.05)
        yield Served(process, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def stoker_serve(folder: Path, model: str, *options: str) -> contextlib.AbstractContextManager[Served]:
    """`stoker serve run`."""
    command = [
        sys.executable, "-m", "stoker", "serve", "run", model, "--port", "PORT", "--quiet", "--run-dir",
        str(folder / "run"), *options,
    ]  # fmt: skip
    return server(command, folder, "/v2/health/ready")


def program(name: str, folder: Path, ready: str) -> contextlib.AbstractContextManager[Served]:
    """A peer: ``echo`` or ``ray`` of ``benchmarks/programs/served_peers.py``, or ``litserve``."""
    words = [str(_PROGRAMS / "served_litserve.py")]
    if name != "litserve":
        words = [str(_PROGRAMS / "served_peers.py"), name]
    return server([sys.executable, *words, "PORT"], folder, ready)


def has(*modules: str) -> bool:
    """Whether all of these are installed."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def json_body(values: np.ndarray) -> bytes:
    """A request of the protocol, as JSON."""
    given = {"name": "x", "shape": values.shape, "datatype": "FP32", "data": values.reshape(-1).tolist()}
    return json.dumps({"inputs": [given]}).encode()


def binary_body(values: np.ndarray) -> tuple[bytes, str]:
    """A request with its tensors as bytes, and the header that goes with it."""
    given = {
        "name": "x", "shape": values.shape, "datatype": "FP32", "parameters": {"binary_data_size": values.nbytes}
    }  # fmt: skip
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    return head + values.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n"
