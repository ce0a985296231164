"""Versions that change and engines that are killed, under load: no request fails, no answer is of two versions."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.programs.served_onnx import save_scaling
from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.http_load import Answers, open_loop, post
from benchmarks.support.serving import Served, binary_body, stoker_serve

BAR = Bar(
    "serve_swap",
    "50 changes of version and 20 kills of engines under load: failed requests, answers of two versions, latency",
    headline=("failed", "mixed", "p99"),
)
RATE = 300.0
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
        with stoker_serve(folder, f"scaling={versions[0]}") as served:
            open_loop(served.port, request, RATE, 0.5)
            quiet, busy, done = [], [], [0, 0]
            for turn in range(options.rounds):
                share = (-(-swaps // options.rounds), -(-kills // options.rounds))
                quiet.append(open_loop(served.port, request, RATE, options.pick(8.0, 2.0, 0.3), turn, one_version))
                found, swapped, killed = _disturbed(served, versions, request, *share)
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
    served: Served, versions: list[Path], request: bytes, swaps: int, kills: int
) -> tuple[Answers, int, int]:
    """Load while one thread changes versions and another kills engines."""
    done = [0, 0]

    def change() -> None:
        for _ in range(swaps):
            now = served.status()["answers"]
            plan = {"source": str(versions[int(str(now)) % 2]), "canary_frac": 0.5, "hold_s": 0.1}
            url = f"http://127.0.0.1:{served.port}/stoker/models/scaling/swap"
            secret = {"Stoker-Control": (versions[0].parent / "run/control.secret").read_text().strip()}
            with urllib.request.urlopen(urllib.request.Request(url, json.dumps(plan).encode(), secret)) as answer:
                done[0] += json.load(answer)["changed"]

    def kill() -> None:
        source = random.Random(0)
        for _ in range(kills):
            time.sleep(0.2)
            while not (engines := served.engines()):
                time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError):
                os.kill(source.choice(engines), signal.SIGKILL)
                done[1] += 1

    found = Answers()
    with _all_running(change, kill) as over:
        while not over():
            part = open_loop(served.port, request, RATE, 1.0, len(found.latencies_s), one_version)
            found.latencies_s += part.latencies_s
            found.statuses += part.statuses
            found.wrong += part.wrong
            found.seconds += part.seconds
    return found, done[0], done[1]


@contextlib.contextmanager
def _all_running(*calls: Callable[[], None]):  # type: ignore[no-untyped-def]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield lambda: not any(thread.is_alive() for thread in threads)
    finally:
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
