"""Sums the recorded calls of a step into its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from stoker.perf.features.records import Operation, StepFeatures, Unknown
from stoker.perf.features.torch_private import tree_leaves
from stoker.perf.features.tracing.fusion import fused
from stoker.perf.features.tracing.layers import layers_of, memory_of, nbytes_of, uses_of, weights_of
from stoker.perf.features.tracing.recorder import DispatchRecorder, TracedCall
from stoker.perf.features.tracing.watch import StepFollower


def features_of(
    recorder: DispatchRecorder, watch: StepFollower, optimizers: Sequence[Optimizer], *, target: str,
    inputs: Sequence[Tensor], batch_size: int | None, name: str, input_bytes: int | None = None, batches: int = 1,
) -> StepFeatures:  # fmt: skip
    """The features of the recorded step; called while its tensors are alive.

    Args:
        recorder: of the step's calls.
        watch: that followed its modules.
        optimizers: that stepped.
        target: whose kernels were counted.
        inputs: what the step was given.
        batch_size: samples of the step; by default the first size of the first input.
        name: for reports.
        input_bytes: of all inputs; by default those of ``inputs``.
        batches: that were loaded for the step.
    """
    buffers = recorder.buffers
    parameters = list(watch.parameters.values())
    for optimizer in optimizers:
        known = {id(parameter) for parameter in parameters}
        parameters += [p for g in optimizer.param_groups for p in g["params"] if id(p) not in known]
    states = [state for optimizer in optimizers for state in states_of(optimizer)]
    for tensor in parameters:
        buffers.give_role(tensor, "weight")
        if tensor.grad is not None:
            buffers.give_role(memory_of(tensor.grad), "gradient")
    for tensor in states:
        buffers.give_role(tensor, "state")
    activation_peak, peak = buffers.peaks()
    uses = uses_of(recorder)
    first = next((tensor for tensor in inputs if tensor.dim() > 0), None)
    samples = batch_size or (first.shape[0] if first is not None else 1)
    return StepFeatures(
        name=name,
        target=target,
        batch_size=samples,
        operations=_operations(recorder, watch.names()),
        weights=weights_of(recorder, uses, parameters, states),
        input_bytes=sum(map(nbytes_of, inputs)) if input_bytes is None else input_bytes,
        activation_peak_bytes=activation_peak,
        peak_bytes=peak,
        compiled=recorder.compiled,
        channels_last=recorder.conv_flops[True] > recorder.conv_flops[False],
        micro_batches=_micro_batches(recorder, batches >= len(buffers.marks) or watch.samples == samples),
        layers=layers_of(recorder, watch, uses, parameters),
        unknown=_unknown(recorder.calls),
        assumptions=recorder.hints.sentences(),
    )


def states_of(optimizer: Optimizer) -> list[Tensor]:
    """The tensors that an optimizer keeps, single numbers aside."""
    leaves = (leaf for state in optimizer.state.values() for leaf in tree_leaves(state))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]


def _micro_batches(recorder: DispatchRecorder, is_divided: bool) -> int:
    """Backward passes over parts of the batch, each after a separate forward pass through the same modules.

    Other steps have several backward passes too: a GAN's two networks, separate losses, an optimizer that recomputes
    the same batch (``is_divided`` is false then). They have one micro-batch.
    """
    forward: list[set[int]] = []
    modules: set[int] = set()
    before = ""
    for phase, module in ((call.phase, call.module) for call in recorder.calls if call.phase != "optimizer"):
        if phase == "backward" != before:
            forward.append(modules)
            modules = set()
        elif phase == "forward" and module:
            modules.add(module)
        before = phase
    passes = len(recorder.buffers.marks)
    alike = len(forward) == passes and all(each == forward[0] for each in forward)
    return passes if is_divided and alike and passes else 1


def _operations(recorder: DispatchRecorder, modules: Sequence[str]) -> tuple[Operation, ...]:
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


def _unknown(calls: Sequence[TracedCall]) -> tuple[Unknown, ...]:
    found: dict[str, list[TracedCall]] = {}
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
