"""A service in a process of its own, models for it, and a plain client."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from stoker.wire.control import CONTROL_HEADER, NONCE_HEADER, ControlChallenge, ControlProof
from tests.waiting import await_that

ENVIRON = os.environ | {"OMP_NUM_THREADS": "1"}


def scaling_model(path: Path, factor: float, width: int = 4, *, slowly: int = 0) -> Path:
    """A model in ONNX whose output is its input times a factor: an answer says which version made it.

    Args:
        path: of the file.
        factor: of all numbers.
        width: numbers of a sample.
        slowly: products of matrices of 512 on the way, which change nothing.
    """
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"])]
    constants = [helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])]
    if slowly:
        constants.append(helper.make_tensor("zeros", TensorProto.FLOAT, [512, 512], np.zeros(512 * 512)))
        constants.append(helper.make_tensor("axes", TensorProto.INT64, [2], [0, 1]))
        # Made of the input, so that it is computed for each batch and not once.
        nodes.append(helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0))
        nodes.append(helper.make_node("Mul", ["sum", "zero"], ["zero_sum"]))
        nodes.append(helper.make_node("Add", ["zeros", "zero_sum"], ["start"]))
        last = "start"
        for place in range(slowly):
            nodes.append(helper.make_node("MatMul", [last, "zeros"], [f"m{place}"]))
            nodes.append(helper.make_node("Cos", [f"m{place}"], [f"c{place}"]))
            last = f"c{place}"
        nodes[0] = helper.make_node("Mul", ["x", "factor"], ["scaled"])
        nodes.append(helper.make_node("ReduceMin", [last, "axes"], ["least"], keepdims=0))
        nodes.append(helper.make_node("Mul", ["least", "zero"], ["nothing"]))
        constants.append(helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]))
        nodes.append(helper.make_node("Add", ["scaled", "nothing"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "scaling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", width])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


class Service:
    """`stoker serve run` in a process.

    Args:
        folder: for its records.
        models: as on the command line.
        options: of the command.
    """

    def __init__(self, folder: Path, models: Sequence[str], *options: str) -> None:
        self.log = folder / "serve.log"
        self.run = folder / "run"
        command = [sys.executable, "-m", "stoker", "serve", "run", *models, "--port", "0", "--run-dir", str(self.run)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *options], stderr=log, env=ENVIRON, cwd=folder)
        self.port = await_that("it serves", self._port, 90.0)

    def _port(self) -> int:
        text = self.log.read_text()
        assert self.process.poll() is None, text
        _, found, rest = text.partition(" at http://127.0.0.1:")
        return int(rest.split()[0]) if found else 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def infer(self, values: NDArray[Any], model: str = "scaling", headers: dict[str, str] | None = None) -> Any:
        """The answer to a request in JSON, with its status; decoded."""
        status, _, text = self.ask("POST", f"/v2/models/{model}/infer", json_request(values), headers)
        return status, msgspec.json.decode(text)

    def swap(self, **plan: Any) -> tuple[int, Any]:
        """Status and content of the answer to a change of version."""
        proof, body = ControlProof(), msgspec.json.encode(plan)
        told = self.ask("GET", "/stoker/control", None, {NONCE_HEADER: proof.nonce})[2]
        header = proof.header(msgspec.json.decode(told, type=ControlChallenge), "scaling", body)
        status, _, text = self.ask("POST", "/stoker/models/scaling/swap", body, {CONTROL_HEADER: header})
        return status, msgspec.json.decode(text)

    def status(self, model: str = "scaling") -> dict[str, Any]:
        """What the service says of a model."""
        return msgspec.json.decode(self.ask("GET", "/stoker/status")[2])[model]

    def processes(self, model: str = "scaling", version: str = "1") -> list[int]:
        """Of the loaded model, then of its engines."""
        return self.status(model)["versions"][version]["processes"]

    def ended(self) -> int:
        """Drains it; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        """Ends it at once."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def json_request(values: NDArray[Any], **more: Any) -> bytes:
    """A request with one input named ``x``."""
    given = {"name": "x", "shape": values.shape, "datatype": "FP32", "data": values.reshape(-1).tolist()}
    return msgspec.json.encode({"inputs": [given], **more})


def is_there(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
