"""Writes the timeline of a traced program's memory from what the recorder keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stoker.perf.features.lifetimes import BufferLife, CallInTime, Category, HeldVariable, MemoryTimeline, Scratch
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.torch_private import tree_leaves
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
    owned = _owned(buffers, watch)  # first, since it may see memory that no call has used
    births, deaths = buffers.lives()
    uses = _uses(recorder.calls)
    last = {number: recorder.calls[places[-1]].at for number, places in uses.items()}
    end = buffers.now
    found = tuple(
        BufferLife(
            size, births[number], deaths.get(number, end), last.get(number, -1),
            _category(buffers, number), buffers.phases[number],
            owned.get(number, names[buffers.owners.get(number, buffers.makers[number])]), buffers.lines[number],
            tuple(uses.get(number, ())), watch.given.released(number), buffers.rows.get(number, 0),
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
        buffers=found, calls=calls, held=held, grows=buffers.grows,
        scratch=tuple(
            Scratch(at, size, phase, names[module], line, num_late_outputs)
            for at, size, phase, module, line, num_late_outputs in buffers.scratch
        ),
    )  # fmt: skip


def _owned(buffers: Buffers, watch: StepFollower) -> dict[int, str]:
    """Path of the module that a parameter belongs to, by the buffers of the parameter, its gradient and its states."""
    owners = watch.owners()
    found: dict[int, str] = {}
    states = {id(p): state for optimizer in watch.optimizers.values() for p, state in optimizer.state.items()}
    for parameter in watch.parameters.values():
        path = owners.get(id(parameter), "")
        leaves = [parameter, parameter.grad, *tree_leaves(states.get(id(parameter)))]
        for tensor in leaves:
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not buffers.is_away(tensor):
                found[buffers.number(tensor)] = path
    return found


def _category(buffers: Buffers, number: int) -> Category:
    role = buffers.roles.get(number) or buffers.old_roles.get(number)
    if role is not None:
        return _OF_ROLES[role]
    kept = buffers.phases[number] == "forward" and any(number in mark for mark in buffers.marks)
    return "activations" if kept else "temporaries"


def _uses(calls: Sequence[TracedCall]) -> dict[int, list[int]]:
    """Places of the calls that use each buffer."""
    found: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        for number in {access[0] for access in (*call.reads, *call.writes)}:
            found.setdefault(number, []).append(place)
    return found


def _moved(call: TracedCall) -> float:
    return sum(access[2] for access in (*call.reads, *call.writes))
