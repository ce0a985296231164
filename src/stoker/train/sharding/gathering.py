# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""Updated weights from the ranks that updated them to all others, many of them in one collective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

_all_gather: Callable[..., object] = getattr(
    dist, "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
)
"""One collective, whose older name warns since torch 2.13."""
BUCKET_BYTES = 8 << 20
"""Most memory for what goes in one collective, of all ranks together."""
_LEAST_BUCKET_BYTES, _GATHERS = 64 << 10, 8
"""A small model is gathered in so many collectives, none of them smaller than this: the memory stays a small part."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of elements of a weight that one rank updates.

    Attributes:
        weight: of it.
        start: first element, in the order of its memory.
        stop: the element behind the last one.
    """

    weight: Tensor
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return (self.stop - self.start) * self.weight.element_size()


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes of a piece, and where they lie in a bucket."""

    weight: Tensor
    start: int
    stop: int
    at: int


def flat_of(tensor: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of its memory, as a view."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements of a tensor fill its memory without gaps or overlaps."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return tensor.layout is torch.strided


class WeightGathering:
    """Gathers the pieces of all ranks, a bucket at a time.

    Args:
        group: of the ranks.
        pieces: by rank, alike on all of them; of one device.
        bucket_bytes: as :data:`BUCKET_BYTES`.
    """

    def __init__(
        self, group: dist.ProcessGroup, pieces: Sequence[Sequence[Piece]], bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._group, self._rank = group, dist.get_rank(group)
        ranks = len(pieces)
        total = sum(piece.nbytes for each in pieces for piece in each)
        bucket_bytes = min(bucket_bytes, max(_LEAST_BUCKET_BYTES, total // _GATHERS))
        most = max((sum(piece.nbytes for piece in each) for each in pieces), default=0)
        # A multiple of 16: bytes of a weight then begin where its elements do.
        width = max(16, min(bucket_bytes // ranks, most) // 16 * 16)
        num_buckets = -(-most // width)
        self._widths = [min(width, most - number * width) for number in range(num_buckets)]
        self._stretches = [_stretches(each, width, num_buckets) for each in pieces]
        """By rank and bucket."""

    @property
    def bucket_bytes(self) -> int:
        """Memory that a collective takes besides the weights."""
        return max(self._widths, default=0) * (len(self._stretches) + 1)

    def gather(self) -> None:
        """Weights are those of the ranks that updated them, afterwards. Collective."""
        if not self._widths:
            return
        device = next(each for rank in self._stretches for bucket in rank for each in bucket).weight.device
        own = torch.empty(self._widths[0], dtype=torch.uint8, device=device)
        every = torch.empty(self._widths[0] * len(self._stretches), dtype=torch.uint8, device=device)
        for number, width in enumerate(self._widths):
            for each in self._stretches[self._rank][number]:
                own[each.at : each.at + each.stop - each.start].copy_(_bytes_of(each))
            found = every[: width * len(self._stretches)]
            _all_gather(found, own[:width], group=self._group)
            for rank, buckets in enumerate(self._stretches):
                if rank != self._rank:
                    for each in buckets[number]:
                        at = rank * width + each.at
                        _bytes_of(each).copy_(found[at : at + each.stop - each.start])


def _bytes_of(each: _Stretch) -> Tensor:
    return flat_of(each.weight).view(torch.uint8)[each.start : each.stop]


def _stretches(pieces: Sequence[Piece], width: int, num_buckets: int) -> list[list[_Stretch]]:
    """One rank's pieces, cut at the ends of buckets."""
    found: list[list[_Stretch]] = [[] for _ in range(num_buckets)]
    at = 0
    for piece in pieces:
        size = piece.weight.element_size()
        start, stop = piece.start * size, piece.stop * size
        while start < stop:
            bucket, inside = divmod(at, width)
            count = min(stop - start, width - inside)
            found[bucket].append(_Stretch(piece.weight, start, start + count, inside))
            start, at = start + count, at + count
    return found
