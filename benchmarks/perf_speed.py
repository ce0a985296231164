"""How long predictions take: one line for each that people wait for."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from benchmarks.harness import Bar, Options, Report, no_collections, run
from stoker.perf.fleet import examine, synthetic_fleet

BAR = Bar(
    "perf_speed",
    "a fleet of a million jobs, after parsing, within 2 s; features of large models in seconds",
    headline=("fleet_s", "features_7b_s", "features_70b_s", "features_lstm_s"),
)


def measure(options: Options) -> Report:
    """Each line in turn."""
    report = Report()
    _fleet(report, options)
    _features(report, options)
    return report


def _features(report: Report, options: Options) -> None:
    """Tracing one step with its optimizer, each time in a process of its own."""
    for name, bound_s, bound_gb in (("7b", 5.0, 1.0), ("70b", 15.0, 1.5), ("lstm", 3.0, 1.0)):
        model = "tiny" if options.size == "tiny" and name != "lstm" else name
        command = [sys.executable, "-m", "benchmarks.traced_models", model]
        runs = [
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(options.pick(options.rounds, min(2, options.rounds), 1))
        ]
        took_s, peak_gb = ([found[key] for found in runs] for key in ("took_s", "peak_gb"))
        report.at_most(f"features_{name}_s", f"features of a step: {model}", took_s, bound_s, unit=" s")
        report.at_most(f"features_{name}_gb", "its process's largest memory", peak_gb, bound_gb, unit=" GB")


def _fleet(report: Report, options: Options) -> None:
    """All that `stoker perf fleet` finds out, once the jobs are in memory."""
    fleet = synthetic_fleet(options.pick(1_000_000, 1_000_000, 10_000))
    took_s: list[float] = []
    for _ in range(options.rounds):
        with no_collections():
            begun_s = time.perf_counter()
            examine(fleet)
            took_s.append(time.perf_counter() - begun_s)
    report.at_most("fleet_s", f"a fleet of {len(fleet):,} jobs, after parsing", took_s, 2.0, unit=" s")


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
