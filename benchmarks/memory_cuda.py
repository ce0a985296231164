"""Memory predicted without a GPU against what a GPU recorded. Nothing is computed: the same on every machine."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.perf.features.program import trace_program
from stoker.perf.memory.reserve import replay

BAR = Bar(
    "memory_cuda",
    "a decoder traced without a GPU: requested bytes within 0.5 % and reserved bytes within 2 % of what torch "
    "recorded on one",
    headline=("requested", "reserved"),
)
PROGRAM = Path(__file__).parent / "programs" / "plain_decoder.py"
RECORDED = {
    128: (7_013_335_044, 7_235_174_400),
    256: (9_103_544_320, 9_265_217_536),
    512: (12_426_629_128, 12_660_506_624),
    1024: (24_207_167_496, 25_178_406_912),
}
"""Most requested and reserved bytes by context; from 512 on in bf16 autocast. Source: memory snapshots of torch about
2.11 in github.com/Wedsonlin/assignment2-systems at 87b0864 (MIT)."""


def measure(options: Options) -> Report:
    """Each context, its worst error claimed."""
    report = Report()
    contexts = options.pick((128, 256, 512, 1024), (128, 1024), (128,))
    errors: list[tuple[float, float]] = []
    rows: list[list[str]] = []
    for context in contexts:
        words = [str(PROGRAM), str(context), *(["bf16"] if context >= 512 else [])]
        timeline = trace_program(words)[1]
        found = replay(timeline, workspace_bytes=timeline.workspace_bytes)
        requested, reserved = RECORDED[context]
        errors.append((100 * (found.requested / requested - 1), 100 * (found.reserved / reserved - 1)))
        rows.append([str(context), f"{found.requested / 1e6:,.0f}", *(f"{error:+.3f} %" for error in errors[-1])])
    report.table(["context", "requested MB", "error", "error of the reserve"], rows)
    report.at_most("requested", "worst error of requested bytes", [max(abs(e) for e, _ in errors)], 0.5, unit=" %")
    report.at_most("reserved", "worst error of reserved bytes", [max(abs(e) for _, e in errors)], 2.0, unit=" %")
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
