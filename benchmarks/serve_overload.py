"""A service with more requests than it can answer: what it answers in time, and how near the simulator comes.

The engine is emulated: it takes 1 ms and 0.1 ms a sample, 30 % more than it did when its costs were measured, with
noise of 0.2. A request has 8 samples, so that one machine can send four times what the engine computes. The simulator
is given what the service measured of the way of a batch to its engine and back, which is that of batches that their
engine has beforehand: under overload nearly all are.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.support.harness import Bar, Options, Report, run
from benchmarks.support.http_load import Answers, open_loop, post
from benchmarks.support.serving import MODELS, binary_body, stoker_serve
from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.sim.serving import FrontEnd, ServedTrace, poisson, serve_trace

BAR = Bar(
    "serve_overload",
    "2 and 4 times the capacity of an emulated engine, 20 ms to answer: in time, late, the simulator's p99",
    headline=("in_time_2x", "late_2x", "simulated_p99_2x"),
)
SLO_S = 0.02
SAMPLES = 8
BATCH = 32
CAPACITY = BATCH / SAMPLES / (1.3 * (1e-3 + 1e-4 * BATCH))
"""Requests a second at the largest batch."""


def measure(options: Options) -> Report:
    """Both loads, round by round."""
    report = Report()
    report.note("the engine is emulated: it sleeps, and takes 30 % longer than when it was measured, with noise of 0.2")
    seconds = options.pick(10.0, 3.0, 0.5)
    body, headers = binary_body(np.ones((SAMPLES, 4), np.float32))
    request = post("/v2/models/engine/infer", body, headers)
    with tempfile.TemporaryDirectory() as name:
        options_of_service = ("--slo", "20ms", "--engines", "1", "--max-batch", str(BATCH))
        with stoker_serve(Path(name), f"engine={MODELS}:emulated", *options_of_service) as served:
            open_loop(served.port, request, 0.8 * CAPACITY, 0.5)  # beliefs settle, as they do in any service
            for load in (2, 4):
                rate = load * CAPACITY
                live = [open_loop(served.port, request, rate, seconds, seed=turn) for turn in range(options.rounds)]
                way_s = float(str(served.status()["handover_s"]))
                front = FrontEnd(handover_s=way_s, between_s=way_s)
                simulated = [_simulated(rate, seconds, turn, front) for turn in range(options.rounds)]
                _claims(report, load, live, simulated)
                report.figure(f"handover_us_{load}x", 1e6 * way_s)
    return report


def _claims(report: Report, load: int, live: list[Answers], simulated: list[ServedTrace]) -> None:
    in_time = [sum(each <= SLO_S for each in answers.latencies_s) for answers in live]
    used = [count / answers.seconds / CAPACITY for count, answers in zip(in_time, live, strict=True)]
    late = [1.0 - count / len(answers.latencies_s) for count, answers in zip(in_time, live, strict=True)]
    off = [
        abs(trace.quantile_s(0.99) / answers.quantile_s(0.99) - 1.0)
        for trace, answers in zip(simulated, live, strict=True)
    ]
    report.at_least(f"in_time_{load}x", f"{load}x load: answers in time / capacity", used, 0.9)
    report.at_most(f"late_{load}x", f"{load}x load: late answers", [100 * each for each in late], 3.0, 1, " %")
    report.at_most(
        f"simulated_p99_{load}x", f"{load}x load: simulated p99 is off by", [100 * each for each in off], 15.0, 1, " %"
    )
    expected = [
        trace.in_time(SLO_S) / answers.seconds / CAPACITY for trace, answers in zip(simulated, live, strict=True)
    ]
    report.figure(f"simulated_in_time_{load}x", float(np.median(expected)))
    report.figure(f"p99_ms_{load}x", 1e3 * float(np.median([each.quantile_s(0.99) for each in live])))


def _simulated(rate: float, seconds: float, seed: int, front: FrontEnd) -> ServedTrace:
    noise = random.Random(seed)
    curve = CostCurve(((1, 1.1e-3), (BATCH, 4.2e-3)))
    queue = ServingQueue(ServingRules(slo_s=SLO_S, max_batch=BATCH), curve)

    def cost_s(samples: int) -> float:
        return 1.3 * max(0.1, noise.gauss(1.0, 0.2)) * (1e-3 + 1e-4 * samples)

    return serve_trace(poisson(rate, int(rate * seconds), seed, SAMPLES), queue, 1, cost_s, SLO_S, front)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
