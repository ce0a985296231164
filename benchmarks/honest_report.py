"""What a report says of a loop, beside what the program measured itself with a clock around the loader's calls."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.programs import timed_program
from benchmarks.programs.timed_program import Loop
from benchmarks.support.harness import Bar, Options, Report, Spread, run
from stoker.ui.loaders import LoaderSummary
from stoker.ui.summary import Summary
from stoker.ui.windows import RecordedWindow

BAR = Bar(
    "honest_report",
    "rate and input wait of six loops: reported, against measured by the program itself",
    headline=("rate_off_percent", "wait_off_points"),
)
MOST_OFF = 2.0
MOST_PARTS_OFF = 0.5
STEPS_MS = (0.0, 0.5, 1.0, 5.0, 20.0)


@dataclasses.dataclass(frozen=True)
class Compared:
    """One window of one loop, both ways."""

    loop: str
    window: str
    rate: float
    wait_frac: float
    reported: RecordedWindow
    wall_s: float

    @property
    def rate_off_percent(self) -> float:
        """How far the reported rate is from the measured one."""
        return 100 * abs((self.reported.samples_per_s or 0.0) / self.rate - 1)

    @property
    def wait_off_points(self) -> float:
        """How far the reported share of input wait is from the measured one, in percentage points."""
        return 100 * abs(self.reported.split.input_wait_frac - self.wait_frac)

    @property
    def parts_off_percent(self) -> float:
        """How far the four parts are from summing to the wall time."""
        return 100 * abs(sum(self.reported.split.parts()) * self.reported.active_s / self.wall_s - 1)


def loops(options: Options) -> list[Loop]:
    """Steps of 0 to 20 ms on items that cost nothing, and a loop that its loader holds up."""
    seconds = options.pick(4.0, 1.2, 0.1)
    found: list[Loop] = []
    for step_ms in STEPS_MS:
        each_s = 1e-3 * step_ms + 0.0003
        batches = max(60, round(seconds / each_s / 2))
        found.append(Loop(name=f"steps of {step_ms:g} ms", step_ms=step_ms, batches=batches, epochs=2))
    slow = Loop(name="loader-bound", step_ms=1.0, item_ms=1.0, batches=max(60, round(seconds / 0.008 / 2)), epochs=2)
    return [*found, slow]


def compare(loops: Sequence[Loop], flags: Sequence[str] = ()) -> list[Compared]:
    """Runs the loops in one program under ``stoker run``; its windows beside what the program says of them."""
    arguments = [json.dumps(dataclasses.asdict(loop)) for loop in loops]
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        at = str(Path(folder) / "run")
        command = [sys.executable, "-m", "stoker", "run", "--quiet", "--run-dir", at, *flags, timed_program.__file__]
        said = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
        shown = [sys.executable, "-m", "stoker", "report", at, "--json"]
        text = subprocess.run(shown, check=True, capture_output=True, text=True).stdout
    loaders = msgspec.json.decode(text, type=Summary).loaders
    measured = [json.loads(line) for line in said.splitlines()]
    return [found for pair in zip(measured, loaders, strict=True) for found in _windows(*pair)]


def _windows(measured: dict[str, Any], loader: LoaderSummary) -> list[Compared]:
    windows = {"whole run": loader.overall, "start": loader.start, "end": loader.end}
    return [
        _beside(measured["name"], name, window, measured["marks"])
        for name, window in windows.items()
        if window is not None
    ]


def _beside(loop: str, name: str, window: RecordedWindow, marks: list[tuple[float, int, float, float]]) -> Compared:
    """The same deliveries, by the program's own clock."""
    first, last = marks[max(0, window.first_batch - 1)], marks[window.first_batch + window.batches - 1]
    at_s, samples, waited_s, paused_s = (b - a for a, b in zip(first, last, strict=True))
    wall_s = at_s - paused_s
    return Compared(loop, name, samples / wall_s, waited_s / wall_s, window, wall_s)


def _lasting(found: list[Compared]) -> list[Compared]:
    """Without the starts: of 20 batches, one moment without a core between two clocks is a share that shows."""
    return [each for each in found if each.window != "start"]


def measure(options: Options) -> Report:
    """All loops in one program, as many times as there are rounds."""
    report = Report()
    rounds = [_lasting(compare(loops(options))) for _ in range(options.rounds)]
    rows: list[list[str]] = []
    for one in rounds[0]:
        same = [found for each in rounds for found in each if (found.loop, found.window) == (one.loop, one.window)]
        rows.append(
            [
                f"{one.loop}, {one.window}",
                Spread.of([found.rate for found in same]).show(0)[0],
                Spread.of([found.reported.samples_per_s or 0.0 for found in same]).show(0)[0],
                Spread.of([100 * found.wait_frac for found in same]).show(1)[0],
                Spread.of([100 * found.reported.split.input_wait_frac for found in same]).show(1)[0],
            ]
        )
    report.table(["medians", "samples/s measured", "reported", "input wait % measured", "reported"], rows)
    for key, what, bound, unit in (
        ("rate_off_percent", "rate off, the worst window of the six loops", MOST_OFF, " %"),
        ("wait_off_points", "input wait off, the worst window", MOST_OFF, " points"),
        ("parts_off_percent", "parts off their wall time, the worst window", MOST_PARTS_OFF, " %"),
    ):
        worst = [max(getattr(found, key) for found in each) for each in rounds]
        report.at_most(key, what, worst, bound, 2, unit)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
