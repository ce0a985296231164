"""Writes the timeline of a traced program's memory from what the recorder keeps."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.perf.features.lifetimes import BufferLife, CallInTime, Category, HeldVariable, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.tracing.buffers import Buffers, Role
from stoker.perf.features.tracing.recorder import DispatchRecorder, TracedCall
from stoker.perf.features.tracing.watch import StepFollower

_OF_ROLES: dict[Role, Category] = {
    "weight": "parameters", "gradient": "gradients", "state": "optimizer", "input": "inputs", "buffer": "buffers",
}  # fmt: skip


def timeline_of(recorder: DispatchRecorder, watch: StepFollower, features: StepFeatures) -> MemoryTimeline:
    """The memory of the recorded step and of what ran before it; called after the features are found.

    Args:
        recorder: of the step's calls.
        watch: that followed its modules.
        features: of the step.
    """
    buffers, names = recorder.buffers, watch.names()
    births, deaths = buffers.lives()
    last = _last_uses(recorder.calls)
    end = buffers.now
    found = tuple(
        BufferLife(
            size, births[number], deaths.get(number, end), last.get(number, -1), _category(buffers, number),
            buffers.phases[number], names[buffers.owners.get(number, buffers.makers[number])], buffers.lines[number],
        )
        for number, size in enumerate(buffers.sizes)
    )  # fmt: skip
    calls = tuple(
        CallInTime(call.at, call.name, call.kind, call.phase, names[call.module], _moved(call))
        for call in recorder.calls
    )
    held = tuple(HeldVariable(number, name, *lines) for number, (name, *lines) in sorted(buffers.held.items()))
    return MemoryTimeline(
        name=features.name, target=features.target, batch_size=features.batch_size, begin=buffers.begun, end=end,
        buffers=found, calls=calls, held=held,
    )  # fmt: skip


def _category(buffers: Buffers, number: int) -> Category:
    role = buffers.roles.get(number) or buffers.old_roles.get(number)
    if role is not None:
        return _OF_ROLES[role]
    kept = buffers.phases[number] == "forward" and any(number in mark for mark in buffers.marks)
    return "activations" if kept else "temporaries"


def _last_uses(calls: Sequence[TracedCall]) -> dict[int, int]:
    found: dict[int, int] = {}
    for call in calls:
        for access in (*call.reads, *call.writes):
            found[access[0]] = call.at
    return found


def _moved(call: TracedCall) -> float:
    return sum(access[2] for access in (*call.reads, *call.writes))
