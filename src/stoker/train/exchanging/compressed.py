# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (linear algebra is untyped)
"""Sums that are not exact, where a program's user allows them: numbers of 16 bits, and PowerSGD's two thin factors.

What is kept from step to step is kept here: the scale of a sum, and the error of each weight that was not sent. All
else follows from sums, which have the same bits on all ranks, so that ranks decide alike. The collectives are made by
:mod:`~stoker.train.exchanging.mixed_round`.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence

import torch

_LARGEST = 8
"""Binary exponent that the largest mean of a sum gets: fp16 ends at 2^16, so values may grow 2^8 times by the next
step; and full precision reaches down to 2^-14, which leaves 22 binary digits below the largest."""
_FARTHEST = 100
"""Most that values are shifted: fp32 has exponents to 127."""
_NOT_FINITE = "its values were not finite"
_TOO_LARGE = "its values were too large for 16 bits"


class HalvedSum:
    """The scale of one sum in fp16, which follows its values: fp16 alone would lose gradients below 6e-8.

    The first sum, one of zeros, and one that overflowed are made in the gradient's own type, and set the scale.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.doubts: Counter[str] = Counter()
        """Steps that were summed in the gradients' own type after an overflow, by reason."""
        self._shift: int | None = None

    def narrowed(self, parts: Sequence[torch.Tensor], scale: float) -> torch.Tensor | None:
        """The parts as one tensor of fp16, multiplied by ``scale`` and shifted; None if no scale is known.

        Args:
            parts: flat, in a wider type; they are not changed.
            scale: 1/P.
        """
        if self._shift is None:
            return None
        found = torch.empty(sum(part.shape[0] for part in parts), dtype=torch.float16, device=parts[0].device)
        at = 0
        for part in parts:
            torch.mul(part, math.ldexp(scale, self._shift), out=found[at : at + part.shape[0]])
            at += part.shape[0]
        return found

    def widen(self, sums: torch.Tensor, parts: Sequence[torch.Tensor]) -> bool:
        """Puts the sums in place of the parts, and learns from them; returns False, and does nothing, if they overflow.

        Args:
            sums: of all ranks' :meth:`narrowed`.
            parts: as they were passed there.
        """
        if self._shift is None or not bool(torch.isfinite(sums).all()):
            return False
        largest = float(sums.abs().max()) if sums.shape[0] else 0.0
        at, factor = 0, math.ldexp(1.0, -self._shift)
        for part in parts:
            part.copy_(sums[at : at + part.shape[0]]).mul_(factor)
            at += part.shape[0]
        self.steps += 1
        self._learn(largest * factor)
        return True

    def overflowed(self, sums: torch.Tensor) -> None:
        """A step went in the gradients' own type after an overflow, with these sums."""
        largest = self._whole(sums)
        self.doubts[_TOO_LARGE if math.isfinite(largest) else _NOT_FINITE] += 1

    def first(self, sums: torch.Tensor) -> None:
        """A step went in the gradients' own type since no scale was known, with these sums."""
        self._whole(sums)

    def _whole(self, sums: torch.Tensor) -> float:
        largest = float(sums.abs().max()) if sums.shape[0] else 0.0
        self._learn(largest)
        return largest

    def _learn(self, largest: float) -> None:
        if not largest or not math.isfinite(largest):
            self._shift = None
            return
        self._shift = max(-_FARTHEST, min(_FARTHEST, _LARGEST - math.frexp(largest)[1]))


class LowRankSum:
    """PowerSGD's state of one weight: the right factor of the last step, and the error that was not sent so far.

    A step is :meth:`left`, a sum of it over the ranks, :meth:`right`, a sum of that, :meth:`fill`. The error of a rank
    is its gradient without the part of it that lies in the common basis. Source: Vogels et al., "PowerSGD" (arXiv
    1905.13727), algorithms 1 and 2; with one basis for all ranks their error and torch's have the same mean.

    Args:
        name: of the weight: all ranks draw the same first factor by it.
        shape: of its gradient as a matrix, M x N.
        rank: columns of the factors.
    """

    def __init__(self, name: str, shape: tuple[int, int], rank: int) -> None:
        self.name, self.shape = name, shape
        self.rank = min(rank, *shape)
        self.steps = 0
        self.doubts: Counter[str] = Counter()
        """Steps that went by all-reduce, by reason."""
        self._right: torch.Tensor | None = None
        self._error: torch.Tensor | None = None
        self._matrix: torch.Tensor | None = None
        self._basis: torch.Tensor | None = None

    def forget(self) -> None:
        """Lets the error go, which is as large as the gradient; what was not sent is lost."""
        self._error = self._matrix = self._basis = None

    def left(self, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's left factor, M x rank.

        Args:
            gradient: its own one, M x N; it is not changed.
        """
        wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        if self._right is None or self._right.dtype != wide:
            drawn = torch.randn(self.shape[1], self.rank, generator=torch.Generator().manual_seed(_seed(self.name)))
            self._right = drawn.to(gradient.device, wide)
        matrix = self._matrix = gradient.to(wide, copy=True)
        if self._error is not None:
            matrix += self._error
        return matrix @ self._right

    def right(self, left: torch.Tensor) -> torch.Tensor | None:
        """This rank's right factor, N x rank; None where the step is to go by all-reduce, alike on all ranks.

        Args:
            left: the mean of all ranks' left factors.
        """
        matrix, self._matrix = self._matrix, None
        assert matrix is not None
        if not bool(torch.isfinite(left).all()):
            self.doubts[_NOT_FINITE] += 1
            return None
        # Also of zeros the basis is one: a step without gradient is no end of the iteration.
        basis: torch.Tensor = torch.linalg.qr(left).Q
        self._basis = basis
        own = matrix.t() @ basis
        matrix.addmm_(basis, own.t(), alpha=-1.0)
        self._error = matrix
        return own

    def fill(self, gradient: torch.Tensor, right: torch.Tensor) -> None:
        """Puts the approximated mean in place of this rank's gradient.

        Args:
            gradient: M x N.
            right: the mean of all ranks' right factors.
        """
        assert self._basis is not None
        self._right = right
        gradient.copy_(self._basis @ right.t())
        self._basis = None
        self.steps += 1


def _seed(name: str) -> int:
    return zlib.crc32(name.encode())
