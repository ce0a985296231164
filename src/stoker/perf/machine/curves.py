"""Which measured curve says how fast an operation runs, and where on it the operation lies.

Probes and predictions both go through :func:`placed`: a probe is measured under the very name and sizes that the
features of a program ask for.
"""

from __future__ import annotations

import math

from stoker.perf.features.records import Operation
from stoker.perf.machine.rates import Work

_FLOAT_BYTES = 4


def placed(operation: Operation) -> Work:
    """One of these calls, placed on its curve."""
    count = operation.count
    work = Work(
        curve=_curve(operation), dims=(), flops=operation.flops / count, bytes=operation.eager_bytes / count
    )  # fmt: skip
    dims = _dims(operation, work)
    flops = work.flops * blocked(dims) if operation.kind == "conv" else work.flops
    # A layer of an LSTM reads its weights at each step: its time follows from its sizes.
    size = 0.0 if operation.kind == "rnn" else work.bytes
    rows = float(dims[0]) if operation.kind == "embedding" else 0.0
    return Work(curve=work.curve, dims=dims, flops=flops, bytes=size, rows=rows)


def blocked(dims: tuple[float, ...]) -> float:
    """How much more a convolution computes than necessary: oneDNN processes channels in eights.

    Images of up to three channels are read as they are.
    """
    _, inside, outside, groups = dims[:4]
    if groups > 1:
        return 1.0
    more = math.ceil(outside / 8) * 8 / outside
    return more * (math.ceil(inside / 8) * 8 / inside if inside > 3 else 1.0)


def _curve(operation: Operation) -> str:
    name, phase = operation.name, operation.phase
    match operation.kind:
        case "matmul":
            return "matmul.batched" if operation.dims[0] > 1 else f"matmul.{phase}"
        case "conv":
            return _convolution(operation)
        case "attention":
            heads, queries, keys, width, values = operation.dims
            way = "backward" if name.endswith("_backward") else "forward"
            products = (3 * width + 2 * values) if way == "backward" else width + values
            causal = operation.flops < 0.75 * operation.count * 2.0 * heads * queries * keys * products
            return f"attention.{way}.causal" if causal else f"attention.{way}"
        case "embedding" if name == "_embedding_bag_backward":
            lookups, width, rows = operation.dims
            # A whole table of gradients is zeroed and added to: three times what was looked up, and the table.
            least = (2.5 * lookups + rows) * width * _FLOAT_BYTES
            whole = operation.eager_bytes >= operation.count * least
            return f"{name}.dense" if whole else f"{name}.sparse"
        case "indexing" if name == "add":  # sparse gradients are added to a table
            return "add.sparse"
        case _:
            return f"{name}.optimizer" if phase == "optimizer" else name


def _convolution(operation: Operation) -> str:
    """Both gradients, or the weight's alone: the first layer's input needs none."""
    batch, channels, out, groups, kernel, positions = operation.dims
    once = 2.0 * batch * positions * out * (channels // groups) * kernel
    way = operation.phase
    if way == "backward" and operation.flops < 1.5 * operation.count * once:
        way = "weight"
    return f"conv.{way}.depthwise" if groups > 1 and groups == channels else f"conv.{way}"


def _dims(operation: Operation, work: Work) -> tuple[float, ...]:
    dims = operation.dims
    match operation.kind:
        case "matmul":
            return dims if dims[0] > 1 else dims[1:]
        case "conv":
            return _convolved(operation, work)
        case "attention":
            return dims[:4]
        case "rnn":
            tokens, steps, width, hidden, _, _ = dims
            return (tokens / steps, steps, width, hidden)
        case "embedding":
            return dims
        case "reduction":
            elements = max(1, dims[0] if dims else 1)
            return (elements, max(1.0, work.bytes / _FLOAT_BYTES - elements))
        case _:
            elements = max(1, dims[0] if dims else 1)
            return (elements, max(0.25, work.bytes / _FLOAT_BYTES / elements))


def _convolved(operation: Operation, work: Work) -> tuple[float, ...]:
    """Batch, channels of a group in and out, groups, elements of the kernel, positions out, positions in.

    The input's positions follow from the bytes, since all else that is read and written is known.
    """
    batch, channels, out, groups, kernel, positions = operation.dims
    weight, result = out * (channels // groups) * kernel, batch * out * positions
    numbers = work.bytes / _FLOAT_BYTES
    way = work.curve.split(".")[1]
    image = (numbers / 2 if way == "backward" else numbers) - weight - result
    before = max(1.0, round(image / (batch * channels)))
    return (batch, channels // groups, out // groups, groups, kernel, positions, before / positions)


def logs(dims: tuple[float, ...]) -> tuple[float, ...]:
    """Coordinates of sizes on a curve, in which equal factors are equal distances."""
    return tuple(math.log(max(size, 1e-3)) for size in dims)
