"""Keeps the batches of one loader within the available memory, and recognises kills for lack of memory."""

from __future__ import annotations

from stoker.core import host
from stoker.core.errors import WorkerLostError, dead_worker
from stoker.core.units import format_bytes
from stoker.feed.fetch import moves_samples
from stoker.feed.program import Program, Tier
from stoker.feed.state.in_flight import LARGE_BYTES, Room, fit
from stoker.feed.state.ledger import Item
from stoker.feed.transport.board import Departure
from stoker.feed.transport.rings import SlotKeeper

_LOOK_S = 1.0
"""Interval between reads of free memory, each of which takes a fraction of a millisecond."""
_WORTH_FRAC = 0.02
"""If workers and batches use less than this share of the memory free at the start, shedding them would not help."""
_TIGHT_FRAC, _EASY_FRAC = 0.02, 0.06
"""With less than the first share of the limit free, one batch is made at a time, until the second share is free."""
_MAX_KILLS = 3
"""After so many workers in a row killed for memory, each alone at work, there is too little for even one batch."""


class MemoryWatch:
    """The memory of one loader, over all its iterations.

    Args:
        program: what its workers run.
        keeper: its slots.
        lookahead: items that torch's loader would have in flight.
        share_frac: share of the host's free memory that this process may use.
    """

    def __init__(self, program: Program, keeper: SlotKeeper, lookahead: int, share_frac: float) -> None:
        self._moves = {tier: moves_samples(program, tier) for tier in Tier}
        self._keeper = keeper
        self._lookahead = lookahead
        self.started_bytes = int(host.memory_bytes()[1] * share_frac)
        """Memory that could be allocated before the first batch was made; 0 when unknown."""
        self._grounds: tuple[object, ...] = ()
        self._next_s = 0.0
        self._kills = host.kills_for_memory()
        self.is_tight = False
        """Whether hardly any memory is free."""
        self.in_flight: int | None = None
        """Items that may be leased or ready at a time; None for no bound."""
        self.most_busy: int | None = None
        """Workers that may work at a time, since one was killed for memory; None for no bound."""
        self.free_bytes = -1
        """Memory that could be allocated at the last look; -1 before the first."""
        self.kills_in_a_row = 0
        """Workers killed for memory while no other was at work, since the last finished item."""

    def fit(self, capacity: int, workers: int, tier: Tier, head: Item | None) -> None:
        """Limits the items in flight if batches are large or memory is tight; recomputed when its inputs change."""
        if self._keeper.largest_bytes < LARGE_BYTES and not self.is_tight and self.most_busy is None:
            return
        grounds = (self._keeper.largest_bytes, workers, capacity, tier, self.is_tight, self.most_busy)
        if grounds == self._grounds:
            return
        self._grounds = grounds
        samples = len(head.work.indices) if head is not None and self._moves[tier] else 1
        room = fit(
            wanted=capacity,
            workers=workers,
            lookahead=self._lookahead,
            batch_bytes=self._keeper.largest_bytes,
            beside_frac=1.0 / max(1, samples),
            program_bytes=host.private_bytes(),
            free_bytes=self.started_bytes,
        )
        if self.is_tight or self.most_busy is not None:
            room = Room(1 if self.is_tight else min(room.in_flight, self.most_busy or 1), 0)
        self.in_flight = room.in_flight if room.in_flight < capacity else None
        self._keeper.limit_warm(room.num_warm)

    def look(self, now_s: float, workers: int, private_bytes: int) -> None:
        """Reads how much memory is free, now and then, if workers and their batches use enough for it to matter."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_S
        used_bytes = workers * (private_bytes + 2 * self._keeper.largest_bytes)
        if used_bytes < _WORTH_FRAC * self.started_bytes:
            return
        limit_bytes, self.free_bytes = host.memory_bytes()
        frac = self.free_bytes / max(1, limit_bytes)
        self.is_tight = frac < (_EASY_FRAC if self.is_tight else _TIGHT_FRAC)

    def killed(self, departure: Departure, busy: int) -> str:
        """The cause of a worker's end if the kernel killed it for lack of memory; else empty.

        From then on, no more workers are at work at a time than the ``busy`` ones that are left.
        """
        kills = host.kills_for_memory() if departure.was_killed else self._kills
        if kills <= self._kills:
            return ""
        self._kills = kills
        self.kills_in_a_row += not busy
        self.most_busy = max(1, busy if self.most_busy is None else min(busy, self.most_busy))
        limit_bytes, _ = host.memory_bytes()
        return f"killed by the kernel for lack of memory, limit {format_bytes(limit_bytes)}"

    def check(self, departure: Departure, cause: str) -> None:
        """Raises :class:`WorkerLostError` if there is too little memory for even one batch."""
        if self.kills_in_a_row >= _MAX_KILLS:
            raise WorkerLostError(
                f"{dead_worker(departure.pid)}: {_MAX_KILLS} data workers in a row were {cause}, each at a single "
                "batch with no other at work; raise the limit, or make batches smaller (`batch_size`)"
            )
