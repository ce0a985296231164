"""The work of a step, summed by what its time depends on; independent of any machine.

A step is a vector: FLOPs of products by kind and width of numbers, bytes by how they are touched, launches. All
that a prediction needs of a program is in it, so that hundreds of traced programs are a small table.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.perf.features.records import Operation

Array = NDArray[np.float64]

WIDTHS = ("single", "half")
"""Numbers of 32 bits, which tensor cores take as TF32 where they can, and of 16."""
_PRODUCTS = ("matmul", "conv", "rnn")
AMOUNTS: Final = (
    *(f"{kind} {width}" for kind in _PRODUCTS for width in WIDTHS),
    *(f"narrow {kind} {width}" for kind in ("matmul", "conv") for width in WIDTHS),
    *(f"grouped conv {width}" for width in WIDTHS),
    "matmul bytes",
    "conv bytes",
    "half conv bytes",
    "depthwise bytes",
    "recurrences",
    "embedding bytes",
    "fused bytes",
    "unfused bytes",
    "optimizer bytes",
    "unfused optimizer bytes",
    "launches",
    *(f"attention {width}" for width in WIDTHS),
    "compiled launches",
)
"""FLOPs of products, by width; fused attention is among matrix products, and also separate. ``narrow``: the same FLOPs
times 64 / the smallest side of the product: the extra cost of a product that fills a tile of the chip badly.
``grouped``: times how far a group of channels is below 32. Bytes of products; of depthwise convolutions, which are all
traffic. Steps of recurrent layers. For all else the bytes that are left when chains are one kernel, and what eager
execution moves in addition. Kernels, and those that are left when chains are one kernel."""
_AT: Final = {name: place for place, name in enumerate(AMOUNTS)}
_TILE, _GROUP = 64, 32


def work_of(operations: Iterable[Operation]) -> Array:
    """The sums, in the order of :data:`AMOUNTS`, of one micro-batch and one optimizer step."""
    sums = np.zeros(len(AMOUNTS))
    for operation in operations:
        for name, amount in _amounts(operation).items():
            sums[_AT[name]] += amount
    return sums


def _amounts(op: Operation) -> dict[str, float]:
    left = op.count if op.phase == "optimizer" else op.fused_count
    launches = {"launches": float(op.count), "compiled launches": float(left)}
    if op.phase == "optimizer":
        lost = op.eager_bytes - op.fused_bytes
        return {"optimizer bytes": op.fused_bytes, "unfused optimizer bytes": lost, **launches}
    width = "half" if op.dtype.removeprefix("torch.") in ("float16", "bfloat16") else "single"
    if op.kind in ("matmul", "attention"):
        found = {f"matmul {width}": op.flops, "matmul bytes": op.eager_bytes}
        if op.kind == "attention":
            return found | {f"attention {width}": op.flops} | launches
        return found | {f"narrow matmul {width}": op.flops * _TILE / max(1, min(op.dims[1:]))} | launches
    if op.kind == "conv":
        return _conv(op, width) | launches
    if op.kind == "rnn":
        _, steps, _, _, layers, _ = op.dims
        return {f"rnn {width}": op.flops, "recurrences": float(steps * layers * op.count), **launches}
    if op.kind == "embedding":
        return {"embedding bytes": op.eager_bytes, **launches}
    return {"fused bytes": op.fused_bytes, "unfused bytes": op.eager_bytes - op.fused_bytes, **launches}


def _conv(op: Operation, width: str) -> dict[str, float]:
    """A convolution as a matrix product: positions x channels out x (channels in x elements of the kernel)."""
    batch, channels, filters, groups, kernel, positions = op.dims
    if 1 < groups >= channels:
        return {"depthwise bytes": op.eager_bytes}
    side = min(filters / groups, channels / groups * kernel, batch * positions)
    found = {
        f"conv {width}": op.flops,
        f"narrow conv {width}": op.flops * _TILE / max(1.0, side),
        "conv bytes": op.eager_bytes,
    }
    if width == "half":
        found["half conv bytes"] = op.eager_bytes
    if groups > 1:
        found[f"grouped conv {width}"] = op.flops * max(0.0, _GROUP * groups / channels - 1.0)
    return found
