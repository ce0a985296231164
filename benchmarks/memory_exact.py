"""Memory predicted without computing against tensors counted in a real run on this CPU. Nothing here is about time."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.support.harness import Bar, Options, Report, run
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import trace_whole
from stoker.perf.features.step import trace
from stoker.perf.memory.reserve import CONTEXT_BYTES, replay
from stoker.perf.memory.timeline import MemoryPeak, by_category, step_peak
from stoker.perf.study.workloads.modules.convolutional import ResNet
from stoker.perf.study.workloads.modules.recurrent import GNMT

BAR = Bar(
    "memory_exact",
    "unmodified programs: peak predicted within 0.5 % of what was counted, each category within 1 % of the peak, the "
    "line of the peak right",
    headline=("peak", "category", "lines"),
)
ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "programs" / "memory"
KINDS = ("conv", "attention", "lstm", "embedding_bag", "mlp", "depthwise", "narrow_conv", "long_attention", "deep_mlp")
FILES = ("mixed", "accumulating", "adversaries", "recomputing", "evaluating", "trainer", "fitting", "by_hand")
BY_HAND = ("by_hand",)
"""Programs without an optimizer."""
M40_BYTES = 12e9


def programs(options: Options) -> dict[str, list[str]]:
    """Command lines by name."""
    kinds = {name: ["-m", "benchmarks.programs.memory.kinds", name] for name in options.pick(KINDS, KINDS[:2], ())}
    names = options.pick(FILES, FILES[:5], FILES[4:5])
    return kinds | {name: [str(FOLDER / f"{name}.py")] for name in names}


def measure(options: Options) -> Report:
    """Each program, its largest errors claimed."""
    report = Report()
    rows: list[list[str]] = []
    peaks: list[float] = []
    categories: list[float] = []
    wrong = 0
    for name, words in programs(options).items():
        for part, counted, timeline in _parts(name, words, report):
            peak = step_peak(timeline)
            error, worst, kind = _errors(counted, timeline, peak)
            line = peak.last.line if peak.last is not None else ""
            peaks.append(abs(error))
            categories.append(worst)
            wrong += line != counted["line"]
            rows.append([
                name, part, f"{counted['peak'] / 1e6:,.2f}", f"{100 * error:+.3f} %", f"{100 * worst:.2f} % {kind}",
                line if line == counted["line"] else f"{line}, counted {counted['line']}",
            ])  # fmt: skip
    report.table(["program", "part", "counted MB", "error", "worst category", "line"], rows)
    report.figure("median", statistics.median(peaks))
    report.at_most("peak", f"worst error of {len(peaks)} peaks", [100 * max(peaks)], 0.5, digits=3, unit=" %")
    report.at_most("category", "worst error of a category", [100 * max(categories)], 1.0, digits=3, unit=" %")
    report.at_most("lines", "peaks whose line is another", [float(wrong)], 0.0, digits=0)
    if options.size == "full":
        _large(report)
    return report


def _parts(name: str, words: list[str], report: Report) -> list[tuple[str, dict[str, Any], MemoryTimeline]]:
    """What was counted and what was traced, by part of the run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "counted.json")
        command = [sys.executable, "-m", "benchmarks.support.counted", str(out)]
        command += [*(["--by-hand"] if name in BY_HAND else []), *words]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ, check=False)
        if not out.exists() or "step" not in json.loads(out.read_text()):
            report.note(f"{name} was not counted: {(done.stderr.strip().splitlines() or ['no step'])[-1]}")
            return []
        counted = json.loads(out.read_text())
    traced = trace_whole(words, target="cpu", evaluates=True)
    found = [("step", counted["step"], traced.timeline)]
    if "evaluation" in counted and traced.evaluation is not None:
        found.append(("evaluation", counted["evaluation"], traced.evaluation))
    elif "evaluation" in counted:
        report.note(f"{name}: its evaluation was counted and not traced")
    return found


def _errors(counted: dict[str, Any], timeline: MemoryTimeline, peak: MemoryPeak) -> tuple[float, float, str]:
    """Error of the peak, and the largest of a category with its name, as shares of the peak."""
    ours, theirs = by_category(timeline, peak), counted["categories"]
    worst, kind = max((abs(ours.get(name, 0) - theirs.get(name, 0)), name) for name in {*ours, *theirs})
    return peak.bytes / counted["peak"] - 1, worst / counted["peak"], kind


def _large(report: Report) -> None:
    """Models that a GPU of 12 GB once trained; nothing is counted, since they are only traced."""
    with torch.device("meta"):
        models = {"ResNet-152": ResNet(152), "an OCR model of sequences": _Reader(), "GNMT": GNMT(width=1024)}
    inputs: dict[str, Any] = {
        "ResNet-152": (torch.empty(32, 3, 224, 224), torch.zeros(32, dtype=torch.int64)),
        "an OCR model of sequences": (torch.empty(64, 1, 32, 512), torch.ones(64, 30, dtype=torch.int64)),
        "GNMT": tuple(torch.zeros(64, 30, dtype=torch.int64) for _ in range(3)),
    }
    rows: list[list[str]] = []
    for name, model in models.items():
        _, timeline = trace(model, inputs[name], optimizer=torch.optim.Adam)
        found = replay(timeline, workspace_bytes=timeline.workspace_bytes)
        total = found.reserved + CONTEXT_BYTES
        fits = "fits" if total <= M40_BYTES else "does not fit"
        rows.append([name, f"{step_peak(timeline).bytes / 1e9:.2f}", f"{total / 1e9:.2f}", fits])
    report.table(["traced for an M40", "tensors GB", "with reserve and context", "12 GB"], rows)


class _Reader(torch.nn.Module):
    """Lines of text: convolutions, a recurrent layer both ways, CTC (arXiv 1507.05717, with its sizes)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [1, 64, 128, 256, 256, 512, 512]
        layers: list[torch.nn.Module] = []
        for place, (before, after) in enumerate(itertools.pairwise(widths)):
            layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.ReLU()]
            if place in (0, 1, 3, 5):
                layers.append(torch.nn.MaxPool2d((2, 2) if place < 2 else (2, 1)))
        self.seen, self.read = torch.nn.Sequential(*layers), torch.nn.LSTM(1024, 256, 2, bidirectional=True)
        self.head = torch.nn.Linear(512, 96)

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """The loss of images (batch, 1, 32, width) and texts (batch, length)."""
        columns = self.seen(images).flatten(1, 2).permute(2, 0, 1)
        scores = self.head(self.read(columns)[0]).log_softmax(-1)
        sizes = [torch.full((len(texts),), size) for size in (scores.shape[0], texts.shape[1])]
        return torch.nn.functional.ctc_loss(scores, texts, *sizes)


if __name__ == "__main__":
    sys.exit(run(BAR, measure))
