"""Versions that change and engines that are killed, under load: no request fails, no answer is of two versions.

What changes and kills are processes: threads of the load's own process would hold up its answers for the 5 ms after
which Python lets another thread run, and that would be taken for the service.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.programs.served_onnx import save_scaling
from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.http_load import Answers, open_loop, post
from benchmarks.support.serving import Served, binary_body, status, stoker_serve
from stoker.run.serving.changing import change_version

BAR = Bar(
    "serve_swap",
    "50 changes of version and 20 kills of engines under load: failed requests, answers of two versions, latency",
    headline=("failed", "mixed", "p99"),
)
RATE = 300.0
_MOST_S = 300.0
"""For all changes and kills of a round."""
SAMPLES = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


def measure(options: Options) -> Report:
    """Undisturbed, then disturbed, in turn."""
    report = Report()
    swaps, kills = options.pick(50, 15, 1), options.pick(20, 10, 1)
    body, headers = binary_body(SAMPLES)
    request = post("/v2/models/scaling/infer", body, headers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = [save_scaling(folder / f"{factor}.onnx", factor) for factor in (2.0, 3.0)]
        with (
            stoker_serve(folder, f"scaling={versions[0]}") as served,
            ProcessPoolExecutor(2, get_context("spawn")) as others,
        ):
            list(others.map(status, [served.port] * 2))  # both have begun
            open_loop(served.port, request, RATE, 0.5)
            quiet, busy, done = [], [], [0, 0]
            for turn in range(options.rounds):
                share = (-(-swaps // options.rounds), -(-kills // options.rounds))
                quiet.append(open_loop(served.port, request, RATE, options.pick(8.0, 2.0, 0.3), turn, one_version))
                found, swapped, killed = _disturbed(served, versions, request, *share, others)
                busy.append(found)
                done[0] += swapped
                done[1] += killed
            left = served.status()
    failed = sum(count for answers in busy for status, count in answers.statuses.items() if status != 200)
    asked = sum(sum(answers.statuses.values()) for answers in busy)
    report.note(f"{done[0]} changes, {done[1]} kills, {asked:,} requests meanwhile, {left['retries']} ran again")
    report.at_least("swaps", "changes of version", [done[0]], swaps, 0)
    report.at_least("kills", "kills of engines", [done[1]], kills, 0)
    report.at_most("failed", "requests without an answer", [failed], 0, 0)
    report.at_most("mixed", "answers of two versions", [sum(answers.wrong for answers in busy)], 0, 0)
    slower = [after.quantile_s(0.99) / before.quantile_s(0.99) for after, before in zip(busy, quiet, strict=True)]
    report.at_most("p99", "99th percentile: disturbed / undisturbed", slower, 2.0)
    return report


def one_version(body: bytes) -> bool:
    """Whether all numbers of an answer are of one version."""
    factors = np.frombuffer(body[-SAMPLES.nbytes :], np.float32) / SAMPLES.reshape(-1)
    return set(factors.tolist()) in ({2.0}, {3.0})


def _disturbed(
    served: Served, versions: list[Path], request: bytes, swaps: int, kills: int, others: Executor
) -> tuple[Answers, int, int]:
    """Load while one process changes versions and another kills engines."""
    doing = [others.submit(_change, served.port, versions, swaps), others.submit(_kill, served.port, kills)]
    found = open_loop(
        served.port, request, RATE, _MOST_S, swaps, one_version, over=lambda: all(each.done() for each in doing)
    )
    swapped, killed = [each.result() for each in doing]
    return found, swapped, killed


def _change(port: int, versions: list[Path], swaps: int) -> int:
    """Changes the version so many times; how many of them did."""
    done = 0
    for _ in range(swaps):
        now = status(port)["answers"]
        plan = {"source": str(versions[int(str(now)) % 2]), "canary_frac": 0.5, "hold_s": 0.1}
        done += bool(change_version(f"http://127.0.0.1:{port}", "scaling", plan)["changed"])
    return done


def _kill(port: int, kills: int) -> int:
    """Kills so many engines of the version that answers; how many of them were there."""
    source, done = random.Random(0), 0
    for _ in range(kills):
        time.sleep(0.2)
        while not (engines := _engines(port)):
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.kill(source.choice(engines), signal.SIGKILL)
            done += 1
    return done


def _engines(port: int) -> list[int]:
    """Processes of the engines of the version that answers."""
    found = status(port)
    return found["versions"][found["answers"]]["processes"][1:]  # type: ignore[index]


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
