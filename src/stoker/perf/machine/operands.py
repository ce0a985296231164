"""Tensors for probes: slices of one block of numbers, so that making them costs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stoker.perf.machine.rates import Work

_ALIGNED = 64
"""Elements between the starts of two slices are a multiple of this."""


class Operands:
    """Hands out slices one after another, from the front again when the block is used up.

    Args:
        num_elements: of the block; the largest tensor must fit.
    """

    def __init__(self, num_elements: int) -> None:
        generator = torch.Generator().manual_seed(0)
        # Between 0.5 and 1.5: roots, quotients and logarithms stay ordinary numbers, and nothing becomes denormal.
        self._block = torch.rand(num_elements, generator=generator).add_(0.5)
        self._generator = generator
        self._at = 0

    def __call__(self, *shape: int) -> Tensor:
        """A tensor of this shape; it shares memory with those handed out long ago."""
        size = math.prod(shape)
        if self._at + size > self._block.numel():
            self._at = 0
        found = self._block[self._at : self._at + size].view(shape)
        self._at += -(-size // _ALIGNED) * _ALIGNED
        return found

    def own(self, *shape: int) -> Tensor:
        """A tensor that may be written to without changing what others read."""
        return self(*shape).clone()

    def below(self, end: int, *shape: int) -> Tensor:
        """Whole numbers in [0, end)."""
        return torch.randint(end, shape, generator=self._generator)

    def touch(self, num_bytes: float) -> None:
        """Reads so much of the block, or all of it, which evicts most else from the caches."""
        self._block[: int(num_bytes) // 4].sum()


class Probe(NamedTuple):
    """An operation to time.

    Attributes:
        make: returns the call to time, with new operands each time.
        footprint: bytes of these operands and of the result.
    """

    work: Work
    make: Callable[[Operands], Callable[[], object]]
    footprint: float


def halton(count: int, *ranges: tuple[float, float]) -> list[tuple[int, ...]]:
    """Sizes spread evenly over ranges by their logarithms, the same each time.

    Source: Halton, Numerische Mathematik 2 (1960): digits of the count, mirrored, in one prime base per dimension.
    """
    primes = (2, 3, 5, 7, 11, 13)
    found: list[tuple[int, ...]] = []
    for n in range(1, count + 1):
        shares = [_mirrored(n, prime) for prime in primes[: len(ranges)]]
        found.append(
            tuple(
                _round(low * (high / low) ** share) for (low, high), share in zip(ranges, shares, strict=True)
            )
        )  # fmt: skip
    return found


def _mirrored(n: int, base: int) -> float:
    value, step = 0.0, 1.0 / base
    while n:
        n, digit = divmod(n, base)
        value += digit * step
        step /= base
    return value


def _round(size: float) -> int:
    """The size rounded as people choose sizes: to multiples of 4 or 8 if one is close."""
    if size < 12:
        return max(1, round(size))
    return round(size / 4) * 4 if size < 48 else round(size / 8) * 8


def bytes_of(*tensors: Sequence[int]) -> float:
    """Bytes of float32 tensors of these shapes."""
    return 4.0 * sum(math.prod(shape) for shape in tensors)
