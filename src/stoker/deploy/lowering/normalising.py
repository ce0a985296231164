"""Layer norm, softmax and its logarithm of integers: tables, fractions and roots with as many bits as 62 allow."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from stoker.deploy.arithmetic.requantising import shift_of
from stoker.deploy.floating import operations as fl
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import centred_squares
from stoker.deploy.ir.values import MOST_BITS, type_range
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer

_NORMAL_BITS = 10
"""Bits of the fraction of a normalised number: 1/1024, an eighth of a step of 8 bits over 16 standard deviations."""
_GAIN_BITS = 15
_MOST_ROOT_BITS = 6
_MOST_SQUARE_BITS = 62
_RECIPROCAL_BITS = 16
"""Bits of the smallest reciprocal."""
_POWER = 0xFFFF
"""The largest entry of an exponential's table."""
_SHARE_BITS = 8
"""The largest share has at least so many where all are equal, so that its logarithm is off by 2^-8 at most."""
_FACTOR_BITS = 15
_LOG_BITS = 15
"""Logarithms have so many, as an engine adds numbers of 16 bits without a sign to none that have one."""


def write_norm(to: Writer, each: fl.FloatNorm, source: str, grid: Grid, ends: tuple[int, int] | None) -> str:
    """A layer norm over the last axis of a value; the result's name.

    Raises:
        ValueError: the input's scale is too small for ``eps``, or the axis too long.
    """
    value, size = to.values[source], len(each.gain)
    epsilon = round(size**3 * each.eps / value.scale**2)
    largest = centred_squares(value, size) + epsilon
    root_bits = min(_MOST_ROOT_BITS, (_MOST_SQUARE_BITS - largest.bit_length()) // 2)
    if root_bits < 0:
        raise ValueError(
            f"a layer norm must have squares of at most {_MOST_SQUARE_BITS} bits, got {largest.bit_length()}"
        )
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


def write_softmax(to: Writer, each: fl.FloatSoftmax, source: str, bits: int, counts: str | None = None) -> str:
    """A softmax over the last axis of a value, of which a value of 0 and 1 says what counts; the result's name."""
    value = to.values[source]
    grid = Grid(bits=bits, signed=False, scale=2.0**-bits, zero_point=0)
    name = to.value(each.name, value.shape, grid)
    powers = np.rint(_POWER * np.exp(-np.arange(1 << value.bits) * value.scale))
    mask: Any = None
    if each.mask is not None:
        before = each.mask.shape[: max(each.mask.ndim - len(value.shape), 0)]  # the batch's axis, of size 1
        own = np.broadcast_to(each.mask, (*before, *value.shape))
        mask = to.constant(f"{name}.mask", own.reshape(value.shape))
    table = to.constant(f"{name}.table", powers)
    return to.write(op.Softmax(source=source, output=name, table=table, mask=mask, counts=counts))


def write_log_softmax(to: Writer, each: fl.FloatSoftmax, source: str, grid: Grid | None) -> str:
    """The logarithm of a softmax over the last axis, of operations that there are; the result's name.

    ``y = x - max(x) + log(max(softmax(x)))``: the share of the largest is the reciprocal of the sum of exponentials.

    Args:
        to: the graph.
        each: without a mask.
        source: name of a value.
        grid: of the result; None: 16 bits, with steps of which the source's has a power of two, so that results are in
            the order of the numbers that they are made of, equal only where these are.
    """
    value = to.values[source]
    size, own = value.shape[-1], to.grid(source)
    to_grid = grid or _log_grid(own, size)
    bits = min(MOST_BITS, _SHARE_BITS + (size - 1).bit_length())
    shares = write_softmax(to, replace(each, name=f"{each.name}.shares"), source, bits)
    shift = shift_of(max(1.0, own.scale / to_grid.scale), _FACTOR_BITS)
    # Steps of logarithms are the result's, halved as often as their bits and the factors allow.
    halved = min(shift, math.floor(math.log2(((1 << _LOG_BITS) - 1) * to_grid.scale / max(math.log(size), 1e-9))))
    logs = _logarithms(to, each.name, _largest(to, shares), size, to_grid.scale * 2.0**-halved)
    factor = round(own.scale / to_grid.scale * 2.0**shift)
    low, high = to_grid.ends
    return to.write(
        op.Add(
            sources=(source, _largest(to, source), logs), output=to.value(each.name, value.shape, to_grid),
            multipliers=(factor, -factor, -(1 << (shift - halved))),
            requantiser=op.Requantiser(
                multiplier=None, shift=shift, zero_point=to_grid.zero_point, low=low, high=high
            ),
        )
    )  # fmt: skip


def _log_grid(source: Grid, size: int) -> Grid:
    """The finest grid of the most bits that holds every result, and of whose steps the source's is a power of two."""
    low, high = type_range(MOST_BITS, True)
    steps = (1 << source.bits) - 1 + math.log(size) / source.scale
    scale = source.scale * 2.0 ** math.ceil(math.log2(steps / (high - low)))
    return Grid(bits=MOST_BITS, signed=True, scale=scale, zero_point=high)


def _largest(to: Writer, name: str) -> str:
    """The largest number of each row of a value: rows are an image of one channel."""
    *before, size = to.values[name].shape
    image = to.reshaped(name, (math.prod(before), size, 1))
    pooled = to.moved(image, (math.prod(before), 1, 1))
    to.write(op.MaxPool(source=image, output=pooled, kernel=(1, size), stride=(1, 1)))
    return to.reshaped(pooled, (*before, 1))


def _logarithms(to: Writer, name: str, share: str, size: int, scale: float) -> str:
    """By a table, what the largest share of each row is the exponential of, less its sign."""
    value = to.values[share]
    numbers = np.arange(1 << value.bits)
    # No largest share is below 1 of the row's size; the largest number stands for all up to 1.
    reals = -np.log(np.maximum(numbers / (1 << value.bits), 1 / size))
    reals[-1] = 0.0
    grid = Grid(bits=_LOG_BITS, signed=False, scale=scale, zero_point=0)
    logs = to.value(f"{name}.logarithm", value.shape, grid)
    return to.write(op.Table(source=share, output=logs, table=to.constant(f"{logs}.table", grid.steps(reals))))
