"""Which parameters, gradients and activations belong to which module, and their sums over a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stoker.perf.features.records import Layer, Weights
from stoker.perf.features.torch_private import values_of
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.watch import StepFollower


@dataclass(slots=True)
class Uses:
    """How one parameter's memory is read in forward and backward passes.

    Attributes:
        at: number of the call that reads it first, and of the module that makes this call.
        touched_bytes: of looked-up rows, repeated ones counted each time.
        multiplied: whether it is also read as a whole.
    """

    at: tuple[int, int]
    touched_bytes: float = 0.0
    multiplied: bool = False

    @property
    def is_table(self) -> bool:
        """Whether it is only ever looked up."""
        return self.touched_bytes > 0 and not self.multiplied


def uses_of(recorder: DispatchRecorder) -> dict[int, Uses]:
    """Use of each buffer that holds weights."""
    found: dict[int, Uses] = {}
    for at, call in enumerate(recorder.calls):
        if call.phase == "optimizer":
            continue
        for place, (buffer, _, nbytes) in enumerate(call.reads):
            if recorder.buffers.roles.get(buffer) != "weight":
                continue
            uses = found.setdefault(buffer, Uses((at, call.module)))
            if call.kind == "embedding" and place == 0:
                uses.touched_bytes += nbytes
            else:
                uses.multiplied = True
    return found


def weights_of(
    recorder: DispatchRecorder, uses: dict[int, Uses], parameters: Sequence[Tensor], states: Sequence[Tensor]
) -> Weights:
    """Parameters that are only looked up are embeddings; a table that also multiplies is dense."""
    count, size, gradients = ({True: 0, False: 0} for _ in range(3))
    for parameter in parameters:
        used = uses.get(recorder.buffers.number(parameter))
        table = used is not None and used.is_table
        count[table] += parameter.numel()
        size[table] += nbytes_of(parameter)
        gradients[table] += _gradient_bytes(parameter, used)
    return Weights(
        dense_count=count[False], embedding_count=count[True], dense_bytes=size[False], embedding_bytes=size[True],
        dense_gradient_bytes=gradients[False], embedding_gradient_bytes=gradients[True],
        embedding_touched_bytes=int(sum(used.touched_bytes for used in uses.values() if used.is_table)),
        optimizer_bytes=sum(map(nbytes_of, states)),
    )  # fmt: skip


def layers_of(
    recorder: DispatchRecorder, watch: StepFollower, uses: dict[int, Uses], parameters: Sequence[Tensor]
) -> tuple[Layer, ...]:
    """One layer for each module that runs operations or owns parameters, by its first operation of the forward pass.

    A parameter belongs to the module that first reads it, since its gradient is complete when the backward pass returns
    there. Unread parameters belong to their owners, which come last.
    """
    names = watch.names()
    sums: dict[str, dict[str, int]] = {}
    for call in recorder.calls:
        if call.phase == "forward":
            sums.setdefault(names[call.module], {})
    for call in recorder.calls:
        if call.phase == "backward":
            sums.setdefault(names[call.module], {})
    owners = watch.owners()
    for parameter in parameters:
        used = uses.get(recorder.buffers.number(parameter))
        path = owners.get(id(parameter), "") if used is None else names[used.at[1]]
        kind = "embedding" if used is not None and used.is_table else "dense"
        _add(sums.setdefault(path, {}), f"{kind}_bytes", nbytes_of(parameter))
        _add(sums[path], f"{kind}_gradient_bytes", _gradient_bytes(parameter, used))
    for number in recorder.buffers.saved():
        path = names[recorder.buffers.makers[number]]
        _add(sums.setdefault(path, {}), "saved_bytes", recorder.buffers.sizes[number])
    for number, size in watch.outputs.items():
        if names[number] in sums:
            sums[names[number]]["output_bytes"] = size
    return tuple(Layer(module=path, **found) for path, found in sums.items())


def _add(sums: dict[str, int], name: str, value: int) -> None:
    sums[name] = sums.get(name, 0) + value


def _gradient_bytes(parameter: Tensor, used: Uses | None) -> int:
    """Bytes of a gradient; a fake sparse one holds no rows, so the looked-up ones count."""
    gradient = parameter.grad if parameter.grad is not None else parameter if parameter.requires_grad else None
    if gradient is None:
        return 0
    if gradient.layout is torch.strided:
        return nbytes_of(gradient)
    return int(used.touched_bytes) if used is not None else 0


def memory_of(tensor: Tensor) -> Tensor:
    """The tensor that holds the values."""
    return tensor if tensor.layout is torch.strided else values_of(tensor)


def nbytes_of(tensor: Tensor) -> int:
    """Bytes of its values."""
    memory = memory_of(tensor)
    return memory.numel() * memory.element_size()
