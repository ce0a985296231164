"""Processor time of a request: beside a server that only echoes, and beside other servers of the same model.

The CPU time of all processes of a server counts, engines included. 32 connections that wait for their answers.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.programs.served_onnx import save_mlp
from benchmarks.support.harness import Bar, Options, Report, alternate, ratios, run
from benchmarks.support.http_load import closed_loop, open_loop, post, processor_s
from benchmarks.support.serving import MODELS, WIDTH, Served, binary_body, has, json_body, program, stoker_serve

BAR = Bar(
    "serve_speed",
    "processor time of a request: 3 KB binary beside a bare uvicorn echo, JSON beside LitServe and Ray Serve",
    headline=("echo", "litserve", "ray"),
)
CONNECTIONS = 32
INFER = "/v2/models/mlp/infer"


def measure(options: Options) -> Report:
    """Binary against the echo, JSON against peers."""
    report = Report()
    seconds = options.pick(4.0, 1.2, 0.2)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
        folder = Path(name)
        values = np.random.default_rng(0).random((1, WIDTH), np.float32)
        body, headers = binary_body(values)
        model = save_mlp(folder / "mlp.onnx")
        ours = servers.enter_context(stoker_serve(folder, f"mlp={model}"))
        echo = servers.enter_context(program("echo", folder, "/"))
        request = post(INFER, body, headers)
        found = alternate(
            options.rounds,
            {"stoker": _cost(ours, request, seconds), "echo": _cost(echo, post("/", body), seconds)},
        )
        _rows(report, found, "us a request, 3 KB binary")
        report.at_most("echo", "binary: stoker / bare uvicorn echo", ratios(found["stoker"], found["echo"]), 2.0)
    with tempfile.TemporaryDirectory() as name:
        _peers(options, report, Path(name), json_body(values), seconds)
    return report


def _cost(served: Served, request: bytes, seconds: float) -> Callable[[], float]:
    def cost() -> float:
        pids = served.pids
        before_s = processor_s(pids)
        answers = closed_loop(served.port, request, CONNECTIONS, seconds)
        assert set(answers.statuses) == {200}, answers.statuses
        return 1e6 * (processor_s(pids) - before_s) / len(answers.latencies_s)

    return cost


def _rows(report: Report, found: dict[str, list[float]], what: str) -> None:
    shown = {name: (np.median(took), min(took), max(took)) for name, took in found.items()}
    rows = [[name, *(f"{value:.0f}" for value in values)] for name, values in shown.items()]
    report.table([what, "median", "lowest", "highest"], rows)


def _peers(options: Options, report: Report, folder: Path, body: bytes, seconds: float) -> None:
    peers = {"litserve": ("LitServe", "/predict", "/health"), "ray": ("Ray Serve", "/", "/")}
    for name, (title, path, ready) in peers.items():
        if not (has("litserve") if name == "litserve" else has("ray", "fastapi", "grpc_reflection")):
            report.note(f"{title} is not installed (`[bench]`): left out")
            continue
        with contextlib.ExitStack() as servers:
            ours = servers.enter_context(stoker_serve(folder, f"mlp={MODELS}:mlp"))
            theirs = servers.enter_context(program(name, folder, ready))
            runs = {
                "stoker": _cost(ours, post(INFER, body), seconds),
                title: _cost(theirs, post(path, body, "Content-Type: application/json\r\n"), seconds),
            }
            found = alternate(options.rounds, runs)
            _rows(report, found, "us a request, JSON of 784 numbers")
            least = 8.0 if name == "litserve" else 1.0
            report.at_least(name, f"JSON: {title} / stoker", ratios(found[title], found["stoker"]), least, 1)
            their_request = post(path, body, "Content-Type: application/json\r\n")
            rate = 0.7 * closed_loop(theirs.port, their_request, CONNECTIONS, seconds).rate
            late = alternate(
                options.rounds,
                {
                    "stoker": _late(ours, post(INFER, body), rate, seconds),
                    title: _late(theirs, their_request, rate, seconds),
                },
            )
            report.at_most(
                f"{name}_p99", f"99th percentile at 70 % of its rate: stoker / {title}",
                ratios(late["stoker"], late[title]), 1.0,
            )  # fmt: skip


def _late(served: Served, request: bytes, rate: float, seconds: float) -> Callable[[], float]:
    return lambda: open_loop(served.port, request, rate, seconds).quantile_s(0.99)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
