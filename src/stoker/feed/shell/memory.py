"""Keeps the batches of one loader within the memory that there is, and tells when the kernel killed for lack of it."""

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
"""How often free memory is read: it costs a part of a millisecond."""
_WORTH_FRAC = 0.02
"""Where workers and batches use less than this share of the limit, shedding them would not help."""
_TIGHT_FRAC, _EASY_FRAC = 0.02, 0.06
"""Below the one share of the limit free, one batch is made at a time; above the other, as many as before."""
_MAX_KILLS = 3
"""Workers killed for memory in a row, each the only one at work: there is too little for even one batch."""


class MemoryWatch:
    """The memory of one loader, over all its iterations.

    Args:
        program: what its workers run.
        keeper: its slots.
        lookahead: items that torch's loader would have in flight.
        share_frac: share of the host's free memory that is this process's to use.
    """

    def __init__(self, program: Program, keeper: SlotKeeper, lookahead: int, share_frac: float) -> None:
        self._moves = {tier: moves_samples(program, tier) for tier in Tier}
        self._keeper = keeper
        self._lookahead = lookahead
        self.started_bytes = int(host.memory_bytes()[1] * share_frac)
        """What could be allocated before the first batch was made; 0 when unknown."""
        self._grounds: tuple[object, ...] = ()
        self._next_s = 0.0
        self._kills = host.kills_for_memory()
        self.is_tight = False
        """Whether hardly any memory is free."""
        self.in_flight: int | None = None
        """Items that may be leased or ready at a time; None for no bound."""
        self.most_busy: int | None = None
        """Workers that may be at work at a time, since one was killed for memory; None for no bound."""
        self.free_bytes = -1
        """Memory that could be allocated when last looked at; -1 when that was not of interest."""
        self.kills_in_a_row = 0
        """Workers killed for memory while no other was at work, since an item was finished."""

    def fit(self, capacity: int, workers: int, tier: Tier, head: Item | None) -> None:
        """Bounds what is in flight where batches are large; the answer holds until its grounds change."""
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
        """Reads what is free, now and then, if workers and their batches use enough of it to matter."""
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
        """What to call the end of a worker that was killed, where the kernel did it for lack of memory; else empty.

        From here on no more workers are at work at a time than the ``busy`` ones that are left.
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
        """Raises :class:`WorkerLostError` when there is too little memory for even one batch."""
        if self.kills_in_a_row >= _MAX_KILLS:
            raise WorkerLostError(
                f"{dead_worker(departure.pid)}: {_MAX_KILLS} data workers in a row were {cause}, each at a single "
                "batch with no other at work; raise the limit, or make batches smaller (`batch_size`)"
            )
