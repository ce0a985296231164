"""Layer norm and softmax of integers: tables, fractions and roots with as many bits as 62 allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stoker.deploy.arithmetic.requantising import shift_of
from stoker.deploy.floating import operations as fl
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import centred_squares
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer

_NORMAL_BITS = 10
"""Bits of the fraction of a normalised number: 1/1024, an eighth of a step of 8 bits over 16 standard deviations."""
_GAIN_BITS = 15
_MOST_ROOT_BITS = 6
_MOST_BITS = 62
_RECIPROCAL_BITS = 16
"""Bits of the smallest reciprocal."""
_POWER = 0xFFFF
"""The largest entry of an exponential's table."""


def write_norm(to: Writer, each: fl.FloatNorm, source: str, grid: Grid, ends: tuple[int, int] | None) -> str:
    """A layer norm over the last axis of a value; the result's name.

    Raises:
        ValueError: the input's scale is too small for ``eps``, or the axis too long.
    """
    value, size = to.values[source], len(each.gain)
    epsilon = round(size**3 * each.eps / value.scale**2)
    largest = centred_squares(value, size) + epsilon
    root_bits = min(_MOST_ROOT_BITS, (_MOST_BITS - largest.bit_length()) // 2)
    if root_bits < 0:
        raise ValueError(f"a layer norm must have squares of at most {_MOST_BITS} bits, got {largest.bit_length()}")
    root = max(1, math.isqrt((largest << (2 * root_bits)) // size))
    reciprocal_bits = max(_RECIPROCAL_BITS + root.bit_length(), root_bits + _NORMAL_BITS)
    gains = each.gain / grid.scale / (1 << _NORMAL_BITS)
    shift = shift_of(float(np.abs(gains).max()), _GAIN_BITS)
    low, high = ends or grid.ends
    name = to.value(each.name, value.shape, grid)
    return to.write(
        op.LayerNorm(
            source=source, output=name, gain=to.constant(f"{name}.gain", np.rint(gains * 2.0**shift)),
            offset=to.constant(f"{name}.offset", np.rint(each.offset / grid.scale * 2.0**shift)), epsilon=epsilon,
            root_bits=root_bits, reciprocal_bits=reciprocal_bits, normal_bits=_NORMAL_BITS,
            requantiser=op.Requantiser(multiplier=None, shift=shift, zero_point=grid.zero_point, low=low, high=high),
        )
    )  # fmt: skip


def write_softmax(to: Writer, each: fl.FloatSoftmax, source: str, bits: int) -> str:
    """A softmax over the last axis of a value; the result's name."""
    value = to.values[source]
    grid = Grid(bits=bits, signed=False, scale=2.0**-bits, zero_point=0)
    name = to.value(each.name, value.shape, grid)
    powers = np.rint(_POWER * np.exp(-np.arange(1 << value.bits) * value.scale))
    mask: Any = None
    if each.mask is not None:
        own = np.broadcast_to(each.mask, (*each.mask.shape[: each.mask.ndim - len(value.shape)], *value.shape))
        mask = to.constant(f"{name}.mask", own.reshape(value.shape))
    table = to.constant(f"{name}.table", powers)
    return to.write(op.Softmax(source=source, output=name, table=table, mask=mask))
