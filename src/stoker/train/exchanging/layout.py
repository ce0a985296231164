"""Which parts of a bucket go which way. Pure: names and sizes in, ranges out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from stoker.records.exchange import LayerMethod
from stoker.train.exchanging.payload import GatheredSegment

GATHERED = ("late", "rows")
"""Methods whose layers are gathered instead of summed."""
OF_WEIGHTS = (*GATHERED, "power")
"""Methods of one weight; others are of all weights that a module has."""
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlacedWeight:
    """A weight in a bucket.

    Attributes:
        size: of its gradient, in elements.
        shape: of its gradient as a matrix.
        kind: of its gradient.
        is_plain: whether its gradient lies row by row, as a matrix does.
    """

    name: str
    size: int
    shape: tuple[int, int]
    kind: torch.dtype
    is_plain: bool


@dataclass(frozen=True, slots=True)
class LowRankSegment:
    """A weight's part of a bucket that is summed as two thin factors.

    Attributes:
        name: of the weight.
        start, stop: its elements in the bucket.
        shape: of its gradient as a matrix.
    """

    name: str
    start: int
    stop: int
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class BucketLayout:
    """The parts of a bucket.

    Attributes:
        segments: that are gathered.
        thin: that are summed as factors of low rank.
        sums: ranges of elements that are summed, by the method that sums them.
        firsts: name of the first weight of each of these sums.
        size: of the bucket, in elements.
    """

    segments: tuple[GatheredSegment, ...]
    thin: tuple[LowRankSegment, ...]
    sums: Mapping[str, tuple[Range, ...]]
    firsts: Mapping[str, str]
    size: int

    @property
    def is_whole(self) -> bool:
        """Whether the backend sums all of the bucket, as without a plan."""
        return not self.segments and not self.thin and tuple(self.sums) in ((), ("all_reduce",))


def laid_out(weights: Sequence[PlacedWeight], methods: Mapping[str, LayerMethod]) -> BucketLayout:
    """The parts of a bucket under a plan.

    Args:
        weights: in the bucket's order.
        methods: by the names of weights; those without one are all-reduced.
    """
    segments: list[GatheredSegment] = []
    thin: list[LowRankSegment] = []
    sums: dict[str, list[Range]] = {}
    firsts: dict[str, str] = {}
    at = 0
    for weight in weights:
        method = methods.get(weight.name)
        stop = at + weight.size
        if method is not None and method.method in GATHERED and weight.is_plain:
            factor = getattr(torch, method.factor_type) if method.method == "late" else weight.kind
            segments.append(
                GatheredSegment(
                    name=weight.name, method=method.method, start=at, stop=stop, shape=weight.shape, room=method.rows,
                    factor_type=factor,
                )
            )  # fmt: skip
        elif method is not None and method.method == "power" and weight.is_plain:
            thin.append(LowRankSegment(weight.name, at, stop, weight.shape))
        else:
            way = "all_reduce" if method is None or method.method in OF_WEIGHTS else method.method
            firsts.setdefault(way, weight.name)
            ranges = sums.setdefault(way, [])
            if ranges and ranges[-1][1] == at:
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((at, stop))
        at = stop
    return BucketLayout(tuple(segments), tuple(thin), {way: tuple(ranges) for way, ranges in sums.items()}, firsts, at)
