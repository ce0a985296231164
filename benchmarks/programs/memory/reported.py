"""Traces a model and reports its memory: `python -m benchmarks.programs.memory.reported 7b` prints what that took."""

from __future__ import annotations

import json
import resource
import sys
import time

import torch

from benchmarks.programs.traced_models import SIZES, VOCABULARY, Decoder
from stoker.perf.features.step import trace
from stoker.perf.memory.reporting import MemoryQuestion, report


def main(name: str) -> None:
    """Prints seconds and the process's largest memory in GB."""
    begun_s = time.perf_counter()
    with torch.device("meta"):
        model = Decoder(*SIZES[name]).to(torch.bfloat16)
    features, timeline = trace(model, torch.randint(VOCABULARY, (1, 2048)), optimizer=torch.optim.AdamW)
    traced_s = time.perf_counter()
    found = report(MemoryQuestion(features=features, timeline=timeline, available=80_000_000_000))
    ended_s = time.perf_counter()
    assert found.remedies or found.fits
    print(json.dumps({
        "beyond_s": ended_s - traced_s, "whole_s": ended_s - begun_s,
        "gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "buffers": len(timeline.buffers), "calls": len(timeline.calls),
    }))  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
