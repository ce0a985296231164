"""How long `stoker memory` takes beyond the trace, and what a large model takes in all."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.support.harness import Bar, Options, Report, run

BAR = Bar(
    "memory_speed",
    "a report of memory within 2 s of its trace; a model of 7B parameters within 10 s and 1.5 GB in all",
    headline=("beyond_s", "whole_7b_s", "whole_7b_gb"),
)


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
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
