"""Traces of a program, as it is and in the form of a plan: each in a child, and kept for the next run of the same."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec

from stoker.core.errors import TracingError
from stoker.core.saying import said_to
from stoker.core.texts import to_json
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import CHILD as FEATURES_CHILD
from stoker.perf.features.program import TracedProgram, trace_program, trace_whole
from stoker.perf.features.records import StepFeatures
from stoker.records.fitting import FitPlan, TracedModel
from stoker.run.fitting.kept_traces import KeptTrace, default_folder, fingerprint

CHILD = "stoker.run.fitting.child"
BF16 = "bf16"
"""In the place of a plan: the program with autocast around its model."""


class TracedFit(msgspec.Struct, frozen=True, kw_only=True):
    """A program's step, its memory and its model."""

    features: StepFeatures
    timeline: MemoryTimeline
    model: TracedModel


class Certified(msgspec.Struct, frozen=True, kw_only=True):
    """A program traced in the form of a plan: its step and its memory."""

    features: StepFeatures
    timeline: MemoryTimeline
    left: dict[str, str]
    """What of the plan could not be applied, by the path of a module or the kind of a measure, and why."""


def trace(
    program: Sequence[str], target: str, *, folder: Path | None = None, begins: Callable[[], object] = lambda: None
) -> TracedFit:
    """The program as it is.

    Args:
        program: a script, or ``-m`` and a module, and arguments.
        target: whose kernels are chosen, ``cuda`` or ``cpu``.
        folder: where traces are kept; None for the user's.
        begins: called if it is traced now, as none is kept.

    Raises:
        TracingError: it cannot be traced.
    """
    kept = KeptTrace(folder or default_folder(), f"{fingerprint(program)}-{target}")
    found = kept.read(TracedFit)
    if found is not None:
        return found
    begins()
    begun_ns = time.time_ns()
    with unseen(shows_errors=True):
        traced, model = look(program, target)
    found = TracedFit(features=traced.features, timeline=traced.timeline, model=model)
    if model.reads is not None:
        kept.write(found, model.reads, begun_ns)
    return found


def look(
    program: Sequence[str], target: str, *, hints: Mapping[str, float] | None = None, evaluates: bool = False
) -> tuple[TracedProgram, TracedModel]:
    """The program as it is, traced now, and what may be done to its model.

    Args:
        program: as above.
        target: as above.
        hints: sizes that depend on computed values.
        evaluates: whether it goes on to its first evaluation.

    Raises:
        TracingError: it cannot be traced.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        facts = Path(place, "model.json")
        child = (CHILD, "-", str(facts))
        traced = trace_whole(program, target=target, hints=hints, evaluates=evaluates, child=child)
        return traced, msgspec.json.decode(facts.read_bytes(), type=TracedModel)


def trace_plan(program: Sequence[str], target: str, plan: FitPlan, *, folder: Path | None = None) -> Certified:
    """The program in the form of a plan; arguments and errors as of :func:`trace`.

    It is kept if the program as it is is: it reads the same files.
    """
    folder = folder or default_folder()
    whole = f"{fingerprint(program)}-{target}"
    kept = KeptTrace(folder, f"{whole}-{_form_of(plan)}")
    found = kept.read(Certified)
    if found is not None:
        return found
    begun_ns = time.time_ns()
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        given, came = Path(place, "plan.json"), Path(place, "applied.json")
        given.write_bytes(to_json(plan))
        with unseen():
            features, timeline = trace_program(program, target=target, child=(CHILD, str(given), str(came)))
        left = msgspec.json.decode(came.read_bytes(), type=dict[str, str])
    found = Certified(features=features, timeline=timeline, left=left)
    reads = KeptTrace(folder, whole).reads()
    if reads is not None:
        kept.write(found, reads, begun_ns)
    return found


def _form_of(plan: FitPlan) -> str:
    """A hash of what a plan does to the program, which its predictions are no part of."""
    does = [msgspec.structs.replace(each, saves_bytes=0, added_s=None) for each in plan.measures]
    return sha256(to_json([plan.model, plan.num_parameters, plan.passes_by_hand, does])).hexdigest()[:16]


def trace_changed(
    program: Sequence[str], target: str, *, batch_times: float = 1, autocast: bool = False
) -> tuple[StepFeatures, MemoryTimeline]:
    """The program with smaller batches, or with bf16 in its models; errors as of :func:`trace`.

    Args:
        program: as of :func:`trace`.
        target: as of :func:`trace`.
        batch_times: size of its loaders' batches by what they are.
        autocast: whether its models compute in bf16.
    """
    child = (CHILD, BF16, "") if autocast else (FEATURES_CHILD,)
    with unseen():
        return trace_program(program, target=target, batch_times=batch_times, child=child)


@contextmanager
def unseen(*, shows_errors: bool = False) -> Generator[None]:
    """Hides what the program prints while it is traced: it prints the same, with numbers that are true, when it runs.

    Args:
        shows_errors: whether it is shown after all if the program cannot be traced.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        log = Path(place, "printed")
        try:
            with said_to(log):
                yield
        except TracingError:
            if shows_errors and log.exists():
                os.write(2, log.read_bytes())
            raise
