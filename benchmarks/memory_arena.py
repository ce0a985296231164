"""Plans of one arena for a step against the most that is alive at once. Only the last line is about time."""

from __future__ import annotations

import gzip
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.programs.cpu_models import OTHERS, SIX
from benchmarks.support.harness import Bar, Options, Report, no_collections, run
from stoker.core.placement.offsets import place_buffers
from stoker.perf.features.step import trace
from stoker.perf.memory.arena import lives_of
from stoker.perf.memory.certificate import certify
from stoker.perf.study.workloads.modules.convolutional import ResNet
from stoker.perf.study.workloads.modules.recurrent import GNMT

BAR = Bar(
    "memory_arena",
    "one planned arena for a step: at most 1.005 times the most that is alive at once, or certified as the smallest "
    "plan; 8,000 buffers within 3 s",
    headline=("worst", "median", "seconds"),
)
TRACES = Path(__file__).parents[2] / "shared" / "data" / "memory"
"""Allocation traces of real CUDA steps; left out where they are not."""
Lives = list[tuple[int, int, int]]


def measure(options: Options) -> Report:
    """Each step, its plan over the bound claimed."""
    report = Report()
    rows: list[list[str]] = []
    above: list[float] = []
    for name, lives in _steps(report, options):
        placed = place_buffers(lives)
        found = certify(lives, placed)
        ratio = found.placement.size / placed.bound
        above.append(1.0 if found.is_optimal else ratio)
        proof = "smallest" if found.is_optimal else "no proof"
        rows.append([name, f"{len(lives):,}", f"{placed.bound / 1e6:,.1f}", f"{ratio:.5f}", proof])
    report.table(["step", "buffers", "alive MB", "plan / alive", ""], rows)
    report.at_most("worst", f"the worst of {len(rows)} plans, if it is not the smallest", [max(above)], 1.005, digits=5)
    report.at_most("median", "their median", [statistics.median(above)], 1.001, digits=5)
    _timed(report, options)
    return report


def _steps(report: Report, options: Options) -> list[tuple[str, Lives]]:
    found: list[tuple[str, Lives]] = []
    made = {**SIX, **OTHERS} if options.size != "tiny" else {"mlp": SIX["mlp"]}
    for name, make in made.items():
        model = make()
        _, timeline = trace(model.module, model.inputs, optimizer=model.optimizer)
        found.append((name, lives_of(timeline)))
    if options.size == "full":
        with torch.device("meta"):
            models = {"ResNet-50": ResNet(), "GNMT": GNMT()}
        inputs = {
            "ResNet-50": (torch.empty(32, 3, 224, 224), torch.zeros(32, dtype=torch.int64)),
            "GNMT": tuple(torch.zeros(64, 25, dtype=torch.int64) for _ in range(3)),
        }
        for name, model in models.items():
            _, timeline = trace(model, inputs[name], optimizer=torch.optim.Adam)
            found.append((name, lives_of(timeline)))
    if not TRACES.is_dir():
        report.note("no traces of CUDA steps on this machine: they are left out")
    paths = sorted(TRACES.glob("*.json.gz")) if TRACES.is_dir() else []
    return found + [(path.name.removesuffix(".json.gz"), _recorded(path)) for path in paths[: options.pick(9, 9, 0)]]


def _recorded(path: Path) -> Lives:
    """Buffers of a recorded step."""
    content = json.loads(gzip.decompress(path.read_bytes()))
    born = {address: (size, 0) for address, size, _ in content["alive"]}
    lives: Lives = []
    for at, (action, address, size) in enumerate(content["events"]):
        if action == "a":
            born[address] = (size, at)
        elif action == "f":
            lives.append((*born.pop(address), at))
    return lives + [(*each, len(content["events"])) for each in born.values()]


def _timed(report: Report, options: Options) -> None:
    """Buffers of random sizes and lives: no order reaches the bound, so that all that is tried counts."""
    chance = np.random.default_rng(0)
    count = options.pick(8_000, 8_000, 200)
    births = chance.integers(0, 2 * count, count)
    table = np.stack([chance.integers(1, 10**7, count), births, births + chance.integers(1, count // 4, count)], 1)
    lives: Lives = [(int(size), int(birth), int(death)) for size, birth, death in table]
    took_s: list[float] = []
    for _ in range(options.rounds):
        with no_collections():
            begun_s = time.perf_counter()
            placed = place_buffers(lives)
            took_s.append(time.perf_counter() - begun_s)
    report.note(f"{count:,} buffers of random sizes and lives: {placed.size / placed.bound:.4f} times the bound")
    report.at_most("seconds", f"to place {count:,} buffers", took_s, 3.0, unit=" s")


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
