"""How long `stoker memory` takes beyond the trace, what a large model takes in all, and what `--fit` costs unneeded."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, alternate, ratios, run

BAR = Bar(
    "memory_speed",
    "a report of memory within 2 s of its trace; a model of 7B parameters within 10 s and 1.5 GB in all; later steps "
    "with `--fit` where it is not needed at most 1.01 times as long",
    headline=("beyond_s", "whole_7b_s", "whole_7b_gb", "later"),
)
_PROGRAM = Path(__file__).parent / "programs" / "memory" / "stepping.py"


def measure(options: Options) -> Report:
    """Each model in processes of its own."""
    report = Report()
    model = options.pick("7b", "7b", "tiny")
    command = [sys.executable, "-m", "benchmarks.programs.memory.reported", model]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for _ in range(options.pick(options.rounds, min(2, options.rounds), 1))
    ]
    report.note(f"{model}: {runs[0]['buffers']:,} buffers, {runs[0]['calls']:,} calls")
    report.at_most("beyond_s", "a report, once the step is traced", [each["beyond_s"] for each in runs], 2.0, unit=" s")
    report.at_most("whole_7b_s", f"trace and report: {model}", [each["whole_s"] for each in runs], 10.0, unit=" s")
    report.at_most("whole_7b_gb", "its process's largest memory", [each["gb"] for each in runs], 1.5, unit=" GB")
    rounds = options.pick(options.rounds, min(3, options.rounds), 1)
    steps = alternate(rounds, {"off": lambda: _step_s("off"), "auto": lambda: _step_s("auto")})
    report.note("a later step's seconds are those of the processor that computes, the median of 380 steps of a run")
    report.at_most("later", "a later step with `--fit auto` without need", ratios(steps["auto"], steps["off"]), 1.01, 3)
    return report


def _step_s(fit: str) -> float:
    """Seconds of a later step of a program with room for all."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--quiet", "--run-dir", folder, "--fit", fit, "--device-memory", "100GB", str(_PROGRAM)]
        done = subprocess.run([sys.executable, "-m", "stoker", *words], check=True, capture_output=True, text=True)
    return statistics.median(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
