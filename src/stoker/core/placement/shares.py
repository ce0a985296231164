"""Which rank updates which weight, and keeps its state: as equal shares as can be. Pure."""

from __future__ import annotations

from collections.abc import Sequence

BY_ELEMENT = (
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
)  # fmt: skip
"""Classes of ``torch.optim`` in which each element of a weight depends on its own gradients alone: it may be cut."""
_EVEN_FRAC = 0.01
"""By how much the largest share may be above the mean before a weight is cut."""
_ALIGNED = 64
"""A cut lies at a multiple of so many elements: kernels then compute each element as they do in the whole weight. They
take the last ones, fewer than a vector's (32 of 32 bits, 64 of 16), with other instructions."""


def owners_of(sizes: Sequence[int], ranks: int, may_cut: Sequence[bool], loads: Sequence[int] = ()) -> list[int | None]:
    """The rank of each weight; None for those that are cut, of which each rank has a part.

    Largest first to the rank that has the least; where that leaves shares uneven, the largest is cut until it does not.

    Args:
        sizes: of the weights (bytes).
        ranks: number of ranks.
        may_cut: whether an update of a weight computes element by element.
        loads: what ranks have already (bytes).
    """
    before = list(loads) or [0] * ranks
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    cut: set[int] = set()
    while True:
        owners, most = _dealt(sizes, order, cut, before)
        mean = (sum(sizes) + sum(before)) / ranks
        largest = next((place for place in order if may_cut[place] and place not in cut), None)
        if most <= mean * (1 + _EVEN_FRAC) or largest is None:
            return owners
        cut.add(largest)


def _dealt(
    sizes: Sequence[int], order: Sequence[int], cut: set[int], before: Sequence[int]
) -> tuple[list[int | None], float]:
    """Owners, and the largest share."""
    shared = sum(sizes[place] for place in cut) / len(before)
    loads = [each + shared for each in before]
    owners: list[int | None] = [None] * len(sizes)
    for place in order:
        if place not in cut:
            owners[place] = rank = min(range(len(loads)), key=lambda each: (loads[each], each))
            loads[rank] += sizes[place]
    return owners, max(loads)


def cut_of(elements: int, ranks: int, rank: int) -> tuple[int, int]:
    """Where a rank's part of a cut weight begins and ends."""
    width = -(-elements // (ranks * _ALIGNED)) * _ALIGNED
    return min(elements, rank * width), min(elements, (rank + 1) * width)
