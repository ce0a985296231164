"""Steps on this machine's CPU: predicted from one calibration and from what the step consists of, then run.

One process calibrates; each model runs in a process of its own, in rounds. Neither sees what the other found. The
shapes of the models are in ``cpu_models.py``; none of them is measured by the calibration. Eager, float32, two threads,
and a C library that keeps the memory that a step has freed (``stoker.perf.machine.allocator``); beside it, without a
claim, the time of a step with glibc as it comes, which gives memory back and fetches it again as chance has it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.programs.cpu_models import OTHERS, SIX, Trained
from benchmarks.support.harness import Bar, Options, Report, number, run
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.features.step import characterise
from stoker.perf.machine.allocator import keep_memory
from stoker.perf.machine.calibrating import calibrate
from stoker.perf.machine.exchange import all_reduce_seconds, interpolated
from stoker.perf.machine.measuring import Times, timed
from stoker.perf.machine.prediction import predict_step
from stoker.perf.machine.rates import Rates, load, save
from stoker.perf.machine.speed import Speed
from stoker.train.fitting.live_bytes import peak_of_step

BAR = Bar(
    "perf_cpu",
    "steps of six models on this CPU, from one calibration that has seen none of them",
    headline=("calibration_s", "step_median", "step_worst", "peak_worst", "all_reduce_worst"),
)
_THREADS = 2
_MODELS = {**SIX, **OTHERS}
_SUMMED = (12_000, 120_000, 900_000, 7_000_000, 30_000_000)
"""Bytes of all-reduces; none is among those of the calibration."""


def measure(options: Options) -> Report:
    """Calibrates, predicts, runs."""
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        _child("calibrate", str(path), *options.pick(("52", "1"), ("40", "1"), ("1", "40")))
        rates = load(path)
    report.at_most("calibration_s", "one calibration", [rates.took_s], 60.0, 1, " s")
    report.note(f"{rates.machine}, {rates.threads} threads, torch {rates.torch}; {len(rates.samples)} operations")
    report.note(f"{rates.disturbed_share:.1%} of the samples were taken while the system ran something else")
    chosen = SIX if options.size != "full" else _MODELS
    rounds = options.pick(3, 2, 1)
    took: dict[str, list[float]] = {name: [] for name in chosen}
    returning: dict[str, float] = {}
    for turn in range(rounds):
        names = list(chosen)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds = str(options.pick(2.5, 1.2, 0.1))
            took[name].append(json.loads(_child("step", name, seconds, "keeps")))
            if turn == 0 and options.size == "full":
                returning[name] = json.loads(_child("step", name, seconds, "returns"))
    _steps(report, rates, took, returning)
    _sums(report, rates, options)
    return report


def _steps(report: Report, rates: Rates, took: dict[str, list[float]], returning: dict[str, float]) -> None:
    """Times and peaks, model by model."""
    speed = Speed(rates)
    errors: dict[str, float] = {}
    peaks: dict[str, float] = {}
    inside: list[bool] = []
    rows: list[list[str]] = []
    for name, seconds in took.items():
        model = _MODELS[name]()
        features = _features(name, model)
        predicted = predict_step(features, speed)
        found = statistics.median(seconds)
        errors[name] = predicted.seconds / found - 1
        live = _live_peak(model)
        peaks[name] = features.peak_bytes / live - 1
        inside.append(predicted.low <= found <= predicted.high)
        plain = _plain(features, rates) / found - 1
        report.figure(f"{name}_error", errors[name])
        rows.append(
            [
                name, number(1e3 * found), f"{number(1e3 * min(seconds))} - {number(1e3 * max(seconds))}",
                number(1e3 * predicted.seconds), f"{errors[name]:+.1%}",
                f"{number(1e3 * predicted.low)} - {number(1e3 * predicted.high)}", f"{plain:+.0%}",
                number(1e3 * returning[name]) if name in returning else "",
                number(live / 1e6, 1), f"{peaks[name]:+.2%}",
            ]
        )  # fmt: skip
    head = [
        "model", "run, ms", "of rounds", "predicted", "error", "90 % interval", "plain rates", "as glibc comes",
        "peak, MB", "error",
    ]  # fmt: skip
    report.table(head, rows)
    for key, names in (("step", SIX), ("other", OTHERS)):
        found = [abs(errors[name]) for name in names if name in errors]
        if found:
            what = "step time of the six" if key == "step" else "step time of six more"
            report.at_most(f"{key}_median", f"{what}: median error", [statistics.median(found)], 0.12, 3)
            report.at_most(f"{key}_worst", f"{what}: worst error", [max(found)], 0.25, 3)
    report.at_most("peak_worst", "peak of live tensors: worst error", [max(map(abs, peaks.values()))], 0.05, 4)
    report.figure("inside_interval", f"{sum(inside)} of {len(inside)}")


def _sums(report: Report, rates: Rates, options: Options) -> None:
    """All-reduces of two processes, at sizes between those that were measured."""
    found = all_reduce_seconds(_SUMMED, options.pick(12.0, 9.0, 0.2))
    errors = {size: interpolated(rates.all_reduce, size) / seconds - 1 for size, seconds in found.items()}
    rows = [
        [number(size, 0), number(1e3 * found[size], 3), number(1e3 * interpolated(rates.all_reduce, size), 3),
         f"{error:+.1%}"]
        for size, error in errors.items()
    ]  # fmt: skip
    report.table(["bytes over two processes", "run, ms", "predicted", "error"], rows)
    report.at_most("all_reduce_worst", "gloo all-reduce: worst error", [max(map(abs, errors.values()))], 0.20, 3)


def _plain(features: StepFeatures, rates: Rates) -> float:
    """What a step takes at the best rate of each kind: FLOPs of products, bytes of everything else."""
    roofline = Speed(rates).roofline
    products = sum(op.flops for op in features.operations if op.kind in MATRIX_KINDS)
    moved = sum(op.eager_bytes for op in features.operations if op.kind not in MATRIX_KINDS)
    return products / roofline.flops_per_s + moved / roofline.bytes_per_s


def _features(name: str, model: Trained) -> StepFeatures:
    return characterise(model.module, model.inputs, optimizer=model.optimizer, target="cpu", name=name)


def _live_peak(model: Trained) -> int:
    optimizer = model.optimizer(model.module.parameters())
    return peak_of_step(model.module, optimizer, model.inputs, lambda: model.module(*model.inputs))


def _child(*arguments: str) -> str:
    """What a process of this module says."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(_THREADS)}
    command = [sys.executable, "-m", "benchmarks.perf_cpu", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def _calibrate(path: str, seconds: str, thin: str) -> None:
    torch.set_num_threads(_THREADS)
    save(calibrate(seconds=float(seconds), thin=int(thin)), Path(path))


def _step(name: str, seconds: str, allocator: str) -> None:
    """Median seconds of a step, after a second of them."""
    if allocator == "keeps":
        keep_memory()
    torch.set_num_threads(_THREADS)
    # One batch is learnt by heart in a second, and its gradients become subnormal numbers: the MLP's steps then take 4
    # times as long, which those of a program with data do not.
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model = _MODELS[name]()
    optimizer = model.optimizer(model.module.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model.module(*model.inputs).backward()
        optimizer.step()

    times = Times()
    for kept, length in ((Times(), min(1.0, float(seconds))), (times, float(seconds))):
        end = time.perf_counter() + length
        while time.perf_counter() < end or not (kept.alone or kept.disturbed):
            timed(kept, step)
    sys.stdout.write(json.dumps(times.seconds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["calibrate"]:
        _calibrate(*sys.argv[2:5])
    elif sys.argv[1:2] == ["step"]:
        _step(*sys.argv[2:5])
    else:
        sys.exit(run(BAR, measure))
