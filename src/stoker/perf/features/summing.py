# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
"""From the recorded calls of a step to its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from stoker.perf.features.fusion import fused
from stoker.perf.features.recorder import Call, Recorder
from stoker.perf.features.records import Operation, StepFeatures, Unknown, Weights

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
            buffers.give_role(_memory(tensor.grad), "gradient")
    for tensor in states:
        buffers.give_role(tensor, "state")
    activation_peak, peak = buffers.peaks()
    first = next((tensor for tensor in inputs if tensor.dim() > 0), None)
    return StepFeatures(
        name=name,
        target=target,
        batch_size=batch_size or (first.shape[0] if first is not None else 1),
        operations=_operations(recorder, watch.names()),
        weights=_weights(recorder, parameters, states),
        input_bytes=sum(map(_nbytes, inputs)) if input_bytes is None else input_bytes,
        activation_peak_bytes=activation_peak,
        peak_bytes=peak,
        unknown=_unknown(recorder.calls),
        assumptions=tuple(recorder.hints.assumed),
    )


def _memory(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout is torch.strided else tensor._values()


def _nbytes(tensor: Tensor) -> int:
    memory = _memory(tensor)
    return memory.numel() * memory.element_size()


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


def _weights(recorder: Recorder, parameters: Sequence[Tensor], states: Sequence[Tensor]) -> Weights:
    """Parameters that are only looked up are embeddings; a table that also multiplies is dense."""
    looked_up: set[int] = set()
    multiplied: set[int] = set()
    touched = 0.0
    for call in recorder.calls:
        if call.phase != "optimizer":
            for at, (buffer, _, nbytes) in enumerate(call.reads):
                if recorder.buffers.roles.get(buffer) == "weight":
                    is_lookup = call.kind == "embedding" and at == 0
                    (looked_up if is_lookup else multiplied).add(buffer)
                    touched += nbytes if is_lookup else 0
    tables = looked_up - multiplied
    is_table = [recorder.buffers.number(parameter) in tables for parameter in parameters]
    sums = {True: [0, 0, 0], False: [0, 0, 0]}
    for parameter, table in zip(parameters, is_table, strict=True):
        gradient = parameter.grad if parameter.grad is not None else parameter if parameter.requires_grad else None
        sums[table][0] += parameter.numel()
        sums[table][1] += _nbytes(parameter)
        if gradient is not None:
            # Fake sparse gradients hold no rows: they have those that were looked up.
            sums[table][2] += _nbytes(gradient) if gradient.layout is torch.strided else int(touched)
    dense, embedding = sums[False], sums[True]
    return Weights(
        dense_count=dense[0], embedding_count=embedding[0], dense_bytes=dense[1], embedding_bytes=embedding[1],
        dense_gradient_bytes=dense[2], embedding_gradient_bytes=embedding[2], embedding_touched_bytes=int(touched),
        optimizer_bytes=sum(map(_nbytes, states)),
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
