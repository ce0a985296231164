"""The largest batch that fits, found by traces of ever closer sizes; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TRIES = 3
"""Traces of one search: each takes as long as the program's first one (assumed: what a person waits for)."""
_CLOSE = 0.01
"""Share of the size by which a larger one must fit to be looked for."""


@dataclass(frozen=True, slots=True)
class SizedStep:
    """What a step of one size takes.

    Attributes:
        batch_size: samples.
        bytes: of the device, if it had no limit.
        fits: whether it runs on the device, where the allocator returns what is unused before it gives up.
    """

    batch_size: int
    bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The answer.

    Attributes:
        batch_size: the largest that fits; 0 if none does.
        is_traced: whether a trace of that size says so, not the line through others.
    """

    batch_size: int
    is_traced: bool


def largest_batch(
    known: Mapping[int, SizedStep], available: int, traced: Callable[[int], SizedStep | None]
) -> LargestBatch | None:
    """The largest batch that fits.

    Args:
        known: at least two sizes, by their samples.
        available: bytes of the device.
        traced: a step of another size, which may turn out to be near it instead; None if it cannot be traced.

    Returns:
        The answer; None if bytes do not grow with the batch.
    """
    steps = dict(known)
    for _ in range(_TRIES):
        guess = _guess(steps, available)
        if guess is None:
            break
        most = max((size for size, step in steps.items() if step.fits), default=0)
        above = min((size for size, step in steps.items() if not step.fits and size > most), default=None)
        close = max(1, math.floor(_CLOSE * most))
        if above is not None and above - most <= close:
            break
        if most and guess <= most + close:
            break
        wanted = guess if above is None or guess < above else (most + above) // 2
        if wanted < 1:
            break
        found = traced(wanted)
        if found is None or found.batch_size in steps:
            return LargestBatch(guess, False)
        steps[found.batch_size] = found
    if len(steps) == len(known) and _guess(steps, available) is None:
        return None
    return LargestBatch(max((size for size, step in steps.items() if step.fits), default=0), True)


def _guess(steps: Mapping[int, SizedStep], available: int) -> int | None:
    """Samples that take what is available, on the line through the two steps that are nearest to it."""
    near = sorted(steps.values(), key=lambda step: abs(step.bytes - available))[:2]
    first, last = sorted(near, key=lambda step: step.batch_size)
    slope = (last.bytes - first.bytes) / (last.batch_size - first.batch_size)
    if slope <= 0:
        return None
    return max(0, math.floor(first.batch_size + (available - first.bytes) / slope))
