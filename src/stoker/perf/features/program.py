"""Characterises a user's program: runs it in a child process, which may crash."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import TracingError
from stoker.perf.features.child_process import LEFT_IN_PIPE, input_waits, run_child
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures

CHILD = "stoker.perf.features.child"
"""Module that traces a program in its process."""
TIMELINE = "timeline.json"
"""File in which a traced program's child leaves the timeline of its memory."""
EVALUATION = "evaluation.json"
"""The same of its first pass without gradients after the traced step."""


@dataclass(frozen=True, slots=True)
class TracedProgram:
    """What a program's child found.

    Attributes:
        features: of one training step.
        timeline: of the program's memory up to the end of that step.
        evaluation: of the first pass without gradients after it, up to its second batch; None if none was seen.
    """

    features: StepFeatures
    timeline: MemoryTimeline
    evaluation: MemoryTimeline | None = None


def characterise_program(
    program: Sequence[str], *, target: str = "cuda", hints: Mapping[str, float] | None = None
) -> StepFeatures:
    """What one training step of a program computes, touches and keeps.

    It runs unmodified up to its second optimizer step; its data are loaded, but nothing is computed with its weights.
    What it prints goes to standard error. Its standard input is a file that this process has been given as well; of a
    pipe it gets nothing, which is for who runs the program in earnest.

    Args:
        program: as for python: a script, or ``-m`` and a module, and its arguments.
        target: whose kernels are counted, ``cuda`` or ``cpu``.
        hints: elements or fractions by line or operation, as for ``characterise``.

    Raises:
        TracingError: no step was found, or the program failed; fields: status.
    """
    return trace_program(program, target=target, hints=hints)[0]


def trace_program(
    program: Sequence[str], *, target: str = "cuda", hints: Mapping[str, float] | None = None, batch_times: float = 1,
    child: Sequence[str] = (CHILD,),
) -> tuple[StepFeatures, MemoryTimeline]:  # fmt: skip
    """The features of one training step of a program, and its memory; arguments and errors as below."""
    found = trace_whole(program, target=target, hints=hints, batch_times=batch_times, child=child)
    return found.features, found.timeline


def trace_whole(
    program: Sequence[str], *, target: str = "cuda", hints: Mapping[str, float] | None = None, batch_times: float = 1,
    evaluates: bool = False, child: Sequence[str] = (CHILD,),
) -> TracedProgram:  # fmt: skip
    """The features of one training step of a program, its memory, and that of its evaluation; errors as above.

    Args:
        program: as above.
        target: as above.
        hints: as above.
        batch_times: by how much the batches of the program's loaders are larger than it says; their samples are taken
            again and again.
        evaluates: whether the program goes on to its first pass without gradients: until it writes a file, for some
            seconds at most. Its loaders give two batches each then.
        child: module that traces, and its own first arguments.
    """
    name = " ".join(program[:2]) if program[0] == "-m" else program[0]
    if program[0] != "-m" and not Path(name).is_file():
        raise TracingError(f"`{name}` must be a Python program, and is no file", status=None)
    with tempfile.TemporaryDirectory(prefix="stoker-features-") as folder:
        out = Path(folder, "features.json")
        asked = json.dumps([dict(hints or {}), batch_times, evaluates])
        status = run_child(child[0], [*child[1:], str(out), target, asked, *program])
        content: dict[str, Any] = json.loads(out.read_bytes()) if out.exists() else {}
        if "features" in content:
            timeline = MemoryTimeline.from_json(out.with_name(TIMELINE).read_bytes())
            later = out.with_name(EVALUATION)
            evaluation = MemoryTimeline.from_json(later.read_bytes()) if later.exists() else None
            return TracedProgram(msgspec.convert(content["features"], StepFeatures), timeline, evaluation)
    rest = LEFT_IN_PIPE if input_waits() else ""
    if "error" in content:
        raise TracingError(content["error"] + rest, status=status)
    ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    seen = content.get("seen", "")
    raise TracingError(
        f"`{name}` {ended} before its second optimizer step; what it printed is above{seen}{rest}", status=status
    )
