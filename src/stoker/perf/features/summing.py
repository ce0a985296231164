# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""From the recorded calls of a step to its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from stoker.perf.features.fusion import fused
from stoker.perf.features.layers import layers_of, memory_of, nbytes_of, uses_of, weights_of
from stoker.perf.features.recorder import Call, Recorder
from stoker.perf.features.records import Operation, StepFeatures, Unknown

if TYPE_CHECKING:
    from stoker.perf.features.step import Watch


def features_of(
    recorder: Recorder, watch: Watch, optimizers: Sequence[Optimizer], *, target: str, inputs: Sequence[Tensor],
    batch_size: int | None, name: str, input_bytes: int | None = None,
) -> StepFeatures:  # fmt: skip
    """The features of the step that was recorded; called while its tensors are alive."""
    buffers = recorder.buffers
    parameters = list(watch.parameters.values())
    for optimizer in optimizers:
        known = {id(parameter) for parameter in parameters}
        parameters += [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    states = [
        leaf
        for optimizer in optimizers
        for state in optimizer.state.values()
        for leaf in tree_leaves(state)
        if isinstance(leaf, Tensor) and leaf.dim() > 0
    ]
    for tensor in parameters:
        buffers.give_role(tensor, "weight")
        if tensor.grad is not None:
            buffers.give_role(memory_of(tensor.grad), "gradient")
    for tensor in states:
        buffers.give_role(tensor, "state")
    activation_peak, peak = buffers.peaks()
    uses = uses_of(recorder)
    first = next((tensor for tensor in inputs if tensor.dim() > 0), None)
    return StepFeatures(
        name=name,
        target=target,
        batch_size=batch_size or (first.shape[0] if first is not None else 1),
        operations=_operations(recorder, watch.names()),
        weights=weights_of(recorder, uses, parameters, states),
        input_bytes=sum(map(nbytes_of, inputs)) if input_bytes is None else input_bytes,
        activation_peak_bytes=activation_peak,
        peak_bytes=peak,
        backward_passes=max(1, len(buffers.marks)),
        layers=layers_of(recorder, watch, uses, parameters),
        unknown=_unknown(recorder.calls),
        assumptions=recorder.hints.sentences(),
    )


def _operations(recorder: Recorder, modules: Sequence[str]) -> tuple[Operation, ...]:
    left = fused(recorder.calls, recorder.buffers.sizes, recorder.buffers.alive())
    sums: dict[Any, list[float]] = {}
    for call, (fused_bytes, begins) in zip(recorder.calls, left, strict=True):
        key = (call.name, call.kind, call.phase, call.dtype, tuple(map(int, call.dims)), modules[call.module])
        found = sums.setdefault(key, [0, 0.0, 0.0, 0.0, 0])
        eager = sum(access[2] for access in call.reads) + sum(access[2] for access in call.writes)
        for at, value in enumerate((1, call.flops, eager, fused_bytes, begins)):
            found[at] += value
    return tuple(
        Operation(
            name=name, kind=kind, phase=phase, dtype=dtype, dims=dims, module=module, count=int(found[0]),
            flops=found[1], eager_bytes=found[2], fused_bytes=found[3], fused_count=int(found[4]),
        )
        for (name, kind, phase, dtype, dims, module), found in sums.items()
    )  # fmt: skip


def _unknown(calls: Sequence[Call]) -> tuple[Unknown, ...]:
    found: dict[str, list[Call]] = {}
    for call in calls:
        if call.kind == "unknown":
            found.setdefault(call.name, []).append(call)
    return tuple(
        Unknown(
            name=name, count=len(same), where=same[0].where,
            bytes=sum(access[2] for call in same for access in (*call.reads, *call.writes)),
        )
        for name, same in found.items()
    )  # fmt: skip
