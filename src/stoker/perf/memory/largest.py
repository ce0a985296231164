"""The largest batch that fits, found by traces of ever closer sizes; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

TRIES = 5
"""Most traces of one search: each takes as long as the program's first one (assumed: what a person waits for)."""
_BACK = (0.0, 0.02, 0.1, 0.5)
"""Share of the way back to the largest size that fits, by the sizes in a row that did not: reserves are no line, and
the line through two sizes may end above what fits by a hair, again and again (assumed)."""
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
    misses = 0
    for _ in range(TRIES):
        guess = _guess(steps, available)
        if guess is None:
            break
        most = max((size for size, step in steps.items() if step.fits), default=0)
        above = min((size for size, step in steps.items() if not step.fits and size > most), default=None)
        close = max(1, math.floor(_CLOSE * most))
        if above is not None and above - most <= close:
            break
        if not most and guess < 1:
            break
        if most and guess <= most + close and not misses:
            break
        if above is not None and not most < guess < above:
            guess = (most + above) // 2
        back = _BACK[min(misses, len(_BACK) - 1)]
        wanted = max(guess - math.ceil(back * (guess - most)), most + 1)
        found = traced(wanted)
        if found is None or found.batch_size in steps:
            return LargestBatch(wanted, False)
        steps[found.batch_size] = found
        misses = 0 if found.fits else misses + 1
    if len(steps) == len(known) and _guess(steps, available) is None:
        return None
    return LargestBatch(max((size for size, step in steps.items() if step.fits), default=0), True)


def at_least(found: LargestBatch | None, other: LargestBatch | None) -> LargestBatch | None:
    """The larger of two answers, the first one if they are equal: of a program with measures, and without."""
    if found is None or other is None:
        return found or other
    return found if found.batch_size >= other.batch_size else other


def _guess(steps: Mapping[int, SizedStep], available: int) -> int | None:
    """Samples that take what is available, on the line through the two steps that are nearest to it."""
    near = sorted(steps.values(), key=lambda step: abs(step.bytes - available))[:2]
    first, last = sorted(near, key=lambda step: step.batch_size)
    slope = (last.bytes - first.bytes) / (last.batch_size - first.batch_size)
    if slope <= 0:
        return None
    return max(0, math.floor(first.batch_size + (available - first.bytes) / slope))
