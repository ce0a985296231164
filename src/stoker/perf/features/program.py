"""Characterises a user's program: runs it in a child process, which may crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import TracingError
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures

CHILD = "stoker.perf.features.child"
"""Module that traces a program in its process."""
TIMELINE = "timeline.json"
"""File in which a traced program's child leaves the timeline of its memory."""


def characterise_program(
    program: Sequence[str], *, target: str = "cuda", hints: Mapping[str, float] | None = None
) -> StepFeatures:
    """What one training step of a program computes, touches and keeps.

    It runs unmodified up to its second optimizer step; its data are loaded, but nothing is computed with its weights.
    What it prints goes to standard error.

    Args:
        program: as for python: a script, or ``-m`` and a module, and its arguments.
        target: whose kernels are counted, ``cuda`` or ``cpu``.
        hints: elements or fractions by line or operation, as for ``characterise``.

    Raises:
        TracingError: no step was found, or the program failed; fields: status.
    """
    return trace_program(program, target=target, hints=hints)[0]


def trace_program(
    program: Sequence[str], *, target: str = "cuda", hints: Mapping[str, float] | None = None, batch_times: int = 1,
    child: Sequence[str] = (CHILD,),
) -> tuple[StepFeatures, MemoryTimeline]:  # fmt: skip
    """The features of one training step of a program, and its memory; errors as above.

    Args:
        program: as above.
        target: as above.
        hints: as above.
        batch_times: by how much the batches of the program's loaders are larger than it says.
        child: module that traces, and its own first arguments.
    """
    name = " ".join(program[:2]) if program[0] == "-m" else program[0]
    if program[0] != "-m" and not Path(name).is_file():
        raise TracingError(f"`{name}` must be a Python program, and is no file", status=None)
    with tempfile.TemporaryDirectory(prefix="stoker-features-") as folder:
        out = Path(folder, "features.json")
        command = [
            sys.executable,
            "-m",
            *child,
            str(out),
            target,
            json.dumps([dict(hints or {}), batch_times]),
        ]
        # Warnings about the CPU (no accelerator found and the like) say nothing about the program.
        environ = {**os.environ, "PYTHONWARNINGS": os.environ.get("PYTHONWARNINGS", "ignore")}
        status = subprocess.run([*command, *program], check=False, stdout=2, env=environ).returncode
        content: dict[str, Any] = json.loads(out.read_bytes()) if out.exists() else {}
        if "features" in content:
            timeline = MemoryTimeline.from_json(out.with_name(TIMELINE).read_bytes())
            return msgspec.convert(content["features"], StepFeatures), timeline
    if "error" in content:
        raise TracingError(content["error"], status=status)
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    raise TracingError(f"`{name}` {ended} before its second optimizer step; what it printed is above", status=status)
