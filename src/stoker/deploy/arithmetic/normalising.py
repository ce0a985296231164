"""Layer norm and softmax on whole numbers: integer square root, one division a row or an element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.values import IntegerValue

Whole = NDArray[np.int64]


def layer_norm(operation: op.LayerNorm, source: Integers, constants: Mapping[str, Integers]) -> Whole:
    """Accumulators of :class:`stoker.deploy.ir.operations.LayerNorm`."""
    x = source.astype(np.int64)
    size = x.shape[-1]
    centred = x * size - x.sum(axis=-1, keepdims=True)
    squares = (centred * centred).sum(axis=-1, keepdims=True) + operation.epsilon
    root = np.maximum(integer_root((squares << (2 * operation.root_bits)) // size), 1)
    reciprocal = (1 << operation.reciprocal_bits) // root
    shift = operation.reciprocal_bits - operation.root_bits - operation.normal_bits
    normal = (centred * reciprocal + ((1 << shift) >> 1)) >> shift
    return normal * constants[operation.gain].astype(np.int64) + constants[operation.offset]


def softmax(
    operation: op.Softmax, source: Integers, output: IntegerValue, constants: Mapping[str, Integers],
    counted: Integers | None = None,
) -> Integers:  # fmt: skip
    """Shares of :class:`stoker.deploy.ir.operations.Softmax`; ``counted`` is the value that says what counts."""
    x = source.astype(np.int64)
    table = constants[operation.table].astype(np.int64)
    masks = [] if operation.mask is None else [constants[operation.mask] != 0]
    if counted is not None:
        masks.append(counted != 0)
    if not masks:
        powers = table[x.max(axis=-1, keepdims=True) - x]
    else:
        counts = np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*masks)), x.shape)
        largest = np.where(counts, x, x.min()).max(axis=-1, keepdims=True)
        powers = np.where(counts, table[np.where(counts, largest - x, 0)], 0)
    total = np.maximum(powers.sum(axis=-1, keepdims=True), 1)  # 0 where nothing counts, and then all powers are
    shares = ((powers << output.bits) + total // 2) // total
    return np.minimum(shares, output.type_high).astype(np.int32)


def integer_root(numbers: NDArray[Any]) -> Whole:
    """The floor of square roots of numbers below 2^62: a double's root is off by at most one."""
    found = np.sqrt(numbers.astype(np.float64)).astype(np.int64)
    found -= found * found > numbers
    found += (found + 1) * (found + 1) <= numbers
    return found
