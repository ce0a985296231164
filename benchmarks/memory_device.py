"""Memory predicted without a GPU against what the GPU of this machine takes, both settings of its allocator.

Skipped with a line where there is no CUDA device. Nothing is emulated. The recorded events of each run are replayed as
well: from them the allocator's own reserve must come out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.perf.catalogue import catalogue, gpu, gpu_named
from stoker.perf.features.program import trace_program
from stoker.perf.memory.kernel_memory import on_gpu
from stoker.perf.memory.reserve import replay
from stoker.perf.memory.snapshots.snapshot import devices_of, history_of, replay_snapshot
from stoker.perf.memory.snapshots.snapshot_file import read_snapshot

BAR = Bar(
    "memory_device",
    "programs traced without a GPU: requested bytes within 0.5 % and reserved bytes within 2 % of what this GPU takes; "
    "recorded requests, replayed, give its reserve within 0.5 %",
    headline=("requested", "reserved", "replayed"),
)
_HERE = Path(__file__).parent / "programs"
_PROGRAMS = (
    ("decoder",), ("decoder", "--half"), ("residual",), ("residual", "--half"), ("recurrent",), ("perceptron",),
)  # fmt: skip


def measure(options: Options) -> Report:
    """Each program under each setting."""
    report = Report()
    if not torch.cuda.is_available():
        report.skip("needs a CUDA device")
        return report
    name = gpu_named(torch.cuda.get_device_name(), catalogue())
    if not name:
        report.skip(f"{torch.cuda.get_device_name()} is not in the catalogue")
        return report
    card = gpu(name)
    report.note(f"{torch.cuda.get_device_name()}, taken as {card.name}; torch {torch.__version__}")
    rows: list[list[str]] = []
    errors: list[tuple[float, float, float]] = []
    for words in options.pick(_PROGRAMS, (_PROGRAMS[0], _PROGRAMS[2]), (_PROGRAMS[3],)):
        program = [str(_HERE / "device_steps.py"), *words]
        timeline = on_gpu(trace_program(program)[1], card)
        for expandable in (False, True):
            taken, replayed = _recorded(program, expandable=expandable)
            found = replay(timeline, expandable=expandable, workspace_bytes=timeline.workspace_bytes)
            errors.append((
                100 * (found.requested / taken["requested"] - 1), 100 * (found.reserved / taken["reserved"] - 1),
                100 * (replayed / taken["reserved"] - 1),
            ))  # fmt: skip
            rows.append([
                " ".join(words), "expandable" if expandable else "default", f"{taken['requested'] / 1e6:,.1f}",
                f"{taken['reserved'] / 1e6:,.1f}", *(f"{error:+.2f} %" for error in errors[-1]),
            ])  # fmt: skip
    report.table(["program", "segments", "requested MB", "reserved MB", "requested", "reserved", "replayed"], rows)
    for place, key, bound in ((0, "requested", 0.5), (1, "reserved", 2.0), (2, "replayed", 0.5)):
        report.at_most(key, f"worst error, {key}", [max(abs(each[place]) for each in errors)], bound, unit=" %")
    return report


def _recorded(program: list[str], *, expandable: bool) -> tuple[dict[str, Any], int]:
    """What a run of the program takes, and the reserve that its recorded requests give."""
    kept = os.environ.get("STOKER_BENCH_SNAPSHOTS")
    with tempfile.TemporaryDirectory() as folder:
        where = Path(kept or folder) / f"{'-'.join(program[1:])}-{'expandable' if expandable else 'default'}.pickle"
        setting = f"expandable_segments:{expandable}"
        done = subprocess.run(
            [sys.executable, str(_HERE / "recorded_memory.py"), str(where), *program], check=True, text=True,
            stdout=subprocess.PIPE, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting},
        )  # fmt: skip
        snapshot = read_snapshot(where)
    replayed = replay_snapshot(history_of(snapshot, devices_of(snapshot)[0]), expandable=expandable)
    return json.loads(done.stdout.splitlines()[-1]), replayed.reserved if replayed else 0


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
