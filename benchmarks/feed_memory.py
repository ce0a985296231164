"""Programs with large samples or a large dataset inside a memory limit: peak memory and time against plain python.

Each program first runs alone, without a limit, under plain python: 1.2 times its peak is the limit for all that
follows. Memory is what the kernel counts for all processes of a run together, in a cgroup of their own. Takes some
minutes, also with ``--quick``: every figure is of a whole process.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, Spread, number, ratios, run
from benchmarks.support.memory_group import Outcome, obstacle, run_limited

BAR = Bar(
    "feed_memory",
    "five programs inside 1.2 times the peak memory of plain python, 2 declared workers",
    headline=("worst_peak", "worst_time"),
)
PROGRAM = Path(__file__).parent / "programs" / "memory_program.py"
KINDS = ("240MB", "40MB", "1MB", "10kB", "dicts")
LIMIT_FACTOR = 1.2
MIB = 1 << 20


def commands(kind: str, scale: float) -> dict[str, list[str]]:
    """The two sides."""
    program = [str(PROGRAM), kind, str(scale)]
    stoker = str(Path(sys.executable).parent / "stoker")
    return {
        "plain": [sys.executable, *program],
        "stoker": [stoker, "run", "--quiet", *program],
        "pinned": [stoker, "run", "--quiet", "--tier", "pinned", *program],
    }


def loop_s(outcome: Outcome) -> float:
    """Seconds of the program's own loop, as it measured them; infinite where it did not come to its end."""
    fields = outcome.output.split()
    return float(fields[fields.index("loop_s") + 1]) if outcome.status == 0 and "loop_s" in fields else float("inf")


def measure(options: Options) -> Report:
    """Runs each program in turn under plain python, stoker, and stoker's pinned tier."""
    report = Report()
    if why := obstacle():
        report.note(why)
        return report
    scale = options.pick(1.0, 0.4, 0.02)
    rows: list[list[str]] = []
    peaks: list[float] = []
    times: list[float] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("10kB",) if options.size == "tiny" else KINDS:
            sides = commands(kind, scale)
            run_limited(sides["stoker"], folder=Path(folder))  # its files are in the page cache then
            alone = run_limited(sides["plain"], folder=Path(folder))
            limit_bytes = int(LIMIT_FACTOR * alone.peak_bytes)
            found: dict[str, list[Outcome]] = {side: [] for side in sides}
            names = list(sides)
            for turn in range(options.rounds):
                for side in names[turn % 3 :] + names[: turn % 3]:
                    found[side].append(run_limited(sides[side], limit_bytes, folder=Path(folder)))
            failed += sum(outcome.status != 0 for each in found.values() for outcome in each)
            plain_s = [loop_s(outcome) for outcome in found["plain"]]
            for side in ("stoker", "pinned"):
                peak = max(outcome.peak_bytes for outcome in found[side]) / alone.peak_bytes
                time_ratio = ratios([loop_s(outcome) for outcome in found[side]], plain_s)
                whole = ratios([o.seconds for o in found[side]], [o.seconds for o in found["plain"]])
                spread = Spread.of(time_ratio)
                peaks.append(peak)
                times.append(spread.median)
                report.figure(f"peak_{kind}_{side}", peak)
                report.figure(f"time_{kind}_{side}", spread.median)
                report.figure(f"whole_{kind}_{side}", statistics.median(whole))
                rows.append(
                    [
                        f"{kind}, {side}",
                        number(alone.peak_bytes / MIB, 0),
                        number(limit_bytes / MIB, 0),
                        number(peak),
                        *spread.show(2),
                        number(statistics.median(whole)),
                    ]
                )
    report.note(f"limits: {LIMIT_FACTOR} times the peak of plain python alone; {os.cpu_count()} cores")
    head = ["program", "plain's peak, MiB", "limit, MiB", "peak / plain", "loop / plain", "low - high", "whole / plain"]
    report.table(head, rows)
    report.at_most("failed", "runs that did not end well", [float(failed)], 0.0, 0)
    report.at_most("worst_peak", "highest peak / plain's, worst program", [max(peaks)], 1.15)
    report.at_most("worst_time", "time of the loop / plain's, worst program's median", [max(times)], 1.05)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
