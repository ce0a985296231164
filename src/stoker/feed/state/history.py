"""What pinned workers have made in an iteration, so that the successor of a lost one can reach the same state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from stoker.feed.program import WorkItem


class History:
    """Items that pinned workers have made in this iteration: 8 bytes a sample and a checksum a batch."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, WorkItem, int | None, int]] = {}
        self._assumed: dict[int, int] = {}
        """Ranks of items made before this history began, whose numbers may exceed those of later items."""

    def made(self, seq: int, work: WorkItem, check: int | None, owner: int) -> None:
        """Records an item made by the worker with id ``owner``; ``check``: checksum of its batch, None for none."""
        self._made[seq] = (_compress(work.indices), replace(work, indices=None), check, owner)

    def assume(self, items: Iterable[tuple[int, WorkItem]], owners: Iterable[int]) -> None:
        """Records items made before this history began, and the ids of the workers that made them."""
        for (seq, work), owner in zip(items, owners, strict=True):
            self._assumed[seq] = len(self._assumed)
            self.made(seq, work, None, owner)

    def of(self, worker_id: int) -> list[tuple[int, WorkItem]]:
        """The items made by the worker with an id, in order."""
        return [
            (seq, replace(work, indices=_expand(indices)))
            for seq, (indices, work, _, owner) in sorted(self._made.items(), key=self._place)
            if owner == worker_id
        ]

    def _place(self, entry: tuple[int, object]) -> tuple[bool, int]:
        seq = entry[0]
        return seq not in self._assumed, self._assumed.get(seq, seq)

    def is_same(self, seq: int, check: int) -> bool:
        """Whether a remade item gave the same batch, as far as its checksum is known."""
        known = self._made[seq][2]
        return known is None or known == check


def _compress(indices: Any) -> Any:
    if type(indices) is not list:
        return indices
    batch = cast("list[object]", indices)
    if all(type(index) is int for index in batch):
        return np.array(batch, np.int64)
    return batch if any(index is not None for index in batch) else -len(batch)


def _expand(indices: Any) -> Any:
    if isinstance(indices, np.ndarray):
        return cast("list[int]", indices.tolist())
    if isinstance(indices, int) and indices < 0:
        return [None] * -indices
    return indices
