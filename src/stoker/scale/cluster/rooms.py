"""Free GPUs and CPUs of nodes, and where a gang fits: the part of admission that is geometry.

Pure state without a clock. A gang that fits one node gets one, the fullest that has room; a larger one takes whole
nodes. With ``spread`` any free GPUs will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.scale.cluster.state import FloatArray, IntArray


@dataclass(frozen=True)
class Need:
    """What a gang holds from its start to its end: all or nothing."""

    gpus: int
    cpus: float = 0.0
    """On the nodes of its GPUs, in proportion; 0 where data workers get theirs from the pool."""

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.cpus < 0.0:
            raise ValueError(f"`gpus` must be at least 1 and `cpus` not negative, got {self.gpus} and {self.cpus}")


@dataclass(frozen=True)
class Seat:
    """GPUs and CPUs of a node that a gang holds."""

    node: int
    gpus: int
    cpus: float


_MANY = 1 << 40
"""More GPUs than any node has."""


class Rooms:
    """The nodes' free GPUs and CPUs.

    Args:
        gpus: of each node.
        cpus: of each node.
        spread: whether a gang may be spread over any nodes.
    """

    def __init__(self, gpus: Sequence[int], cpus: Sequence[float], *, spread: bool = False) -> None:
        self.gpus: IntArray = np.array(gpus, dtype=np.int64)
        self.cpus: FloatArray = np.array(cpus, dtype=np.float64)
        self.free_gpus = int(self.gpus.sum())
        self.total_gpus = self.free_gpus
        self.spread = spread
        self._largest = int(self.gpus.max(initial=0))
        self._node_gpus: IntArray = self.gpus.copy()
        self._node_cpus: FloatArray = self.cpus.copy()

    def lacks(self, need: Need) -> str:
        """What an empty cluster lacks for a gang; empty where it fits."""
        if need.gpus > self.total_gpus:
            return f"{need.gpus} GPUs are more than the {self.total_gpus} of all nodes"
        if not self.spread and need.gpus > self._largest:
            whole = int((self._node_gpus == self._largest).sum())
            if -(-need.gpus // self._largest) > whole:
                return f"{need.gpus} GPUs take more whole nodes than the {whole} there are with {self._largest} GPUs"
        gpus = min(need.gpus, self._largest)
        share = need.cpus / need.gpus * gpus
        most = float(self._node_cpus[self._node_gpus >= gpus].max(initial=0.0))
        if share > most:
            return f"{share:g} CPUs with its GPUs are more than the {most:g} of a node with {gpus} GPUs"
        return ""

    def place(self, need: Need) -> list[Seat] | None:
        """Takes the room for a gang; None where there is none now."""
        if need.gpus > self.free_gpus:
            return None
        seats = self._one(need)
        if seats is None and (self.spread or need.gpus > self._largest):
            seats = self._many(need)
        for seat in seats or ():
            self._take(seat, 1)
        return seats

    def retake(self, seats: Sequence[Seat]) -> None:
        """Takes seats that are free."""
        for seat in seats:
            self._take(seat, 1)

    def vacate(self, seats: Sequence[Seat]) -> None:
        """Gives back what :meth:`place` took."""
        for seat in seats:
            self._take(seat, -1)

    def cpus_bind(self, need: Need) -> bool:
        """Whether a gang that has no room now would have it without its CPUs."""
        return need.cpus > 0.0 and self._has_gpus(need)

    def fragmented(self, need: Need) -> bool:
        """Whether enough GPUs are free for a gang, but not where it may have them."""
        return need.gpus <= self.free_gpus and not self._has_gpus(need)

    def _has_gpus(self, need: Need) -> bool:
        if need.gpus > self.free_gpus:
            return False
        if self.spread:
            return True
        if need.gpus <= self._largest:
            return bool((self.gpus >= need.gpus).any())
        return int((self.gpus >= self._largest).sum()) >= -(-need.gpus // self._largest)

    def _take(self, seat: Seat, sign: int) -> None:
        self.gpus[seat.node] -= sign * seat.gpus
        self.cpus[seat.node] -= sign * seat.cpus
        self.free_gpus -= sign * seat.gpus

    def _one(self, need: Need) -> list[Seat] | None:
        fits = self.gpus >= need.gpus
        if need.cpus:
            fits &= self.cpus >= need.cpus - 1e-9
        left = np.where(fits, self.gpus, _MANY)
        node = int(left.argmin())
        return [Seat(node, need.gpus, need.cpus)] if fits[node] else None

    def _many(self, need: Need) -> list[Seat] | None:
        per_gpu = need.cpus / need.gpus
        usable = self.gpus if self.spread else np.where(self.gpus == self._largest, self.gpus, 0)
        if per_gpu:
            usable = np.minimum(usable, np.floor((self.cpus + 1e-9) / per_gpu).astype(np.int64))
            if not self.spread:
                usable = np.where(usable == self._largest, usable, 0)
        seats: list[Seat] = []
        left = need.gpus
        for node in np.argsort(-usable, kind="stable").tolist():
            part = min(left, int(usable[node]))
            if part == 0:
                return None
            # The rest of the last node stays free for others, as much as it is.
            seats.append(Seat(node, part, part * per_gpu))
            left -= part
            if not left:
                return seats
        return None
