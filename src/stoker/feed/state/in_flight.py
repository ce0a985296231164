"""How many batches of a loader may be in flight, so that it needs no more memory than under torch. Pure arithmetic.

Torch's loader allocates a segment for each batch and frees it with the batch. Reused slots save that time, but each
slot that was ever used keeps its memory, and a worker holds the samples of a batch besides. For large batches that is
bounded: first by fewer items in flight; where too few would be left, by slots that release their memory when they
become free, which costs the time that torch's segments cost.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_FRAC = 1.15
"""Peak memory that stoker may need, as a multiple of torch's loader with the same number of workers."""
LARGE_BYTES = 1 << 24
"""Smaller batches are not bounded: torch keeps several of them in freed memory of its workers."""
OWN_BYTES = 24 << 20
"""Memory that stoker needs apart from batches: its modules and the template (15 to 21 MiB were measured)."""
_IN_HAND = 2
"""Batches that the program holds: the one it receives, and the previous one, which it drops only then."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be in flight."""

    in_flight: int
    """Items that may be leased or ready at a time."""
    num_warm: int | None
    """Slots that may keep memory while they are free; None for all."""


def torchs_batches(workers: int) -> int:
    """Batches that torch's loader holds at its peak: in each worker the samples and what they are stacked into."""
    return 2 * workers + 1


def fit(
    *,
    wanted: int,
    workers: int,
    lookahead: int,
    batch_bytes: int,
    beside_frac: float,
    program_bytes: int,
    free_bytes: int,
) -> Room:
    """The room for a loader's batches.

    Args:
        wanted: items in flight for the highest throughput, at least 1.
        workers: data workers.
        lookahead: items that torch's loader would have in flight.
        batch_bytes: the largest batch seen; 0 when none has been.
        beside_frac: memory that a worker needs besides the slot while it makes a batch, as a share of the batch.
        program_bytes: private memory of the training process.
        free_bytes: memory that could be allocated before the first batch was made; 0 when unknown.
    """
    if batch_bytes < LARGE_BYTES:
        return Room(wanted, None)
    room = _as_fast_as_fits(wanted, workers, lookahead, batch_bytes, beside_frac, program_bytes)
    if free_bytes and free_bytes < torchs_batches(workers) * batch_bytes:
        return Room(max(1, min(room.in_flight, free_bytes // batch_bytes - _IN_HAND)), room.num_warm)
    return room


def _as_fast_as_fits(
    wanted: int, workers: int, lookahead: int, batch_bytes: int, beside_frac: float, program_bytes: int
) -> Room:
    spare = ((MOST_FRAC - 1.0) * program_bytes - OWN_BYTES) / batch_bytes
    slots = int(MOST_FRAC * torchs_batches(workers) - workers * beside_frac + spare)
    if slots >= wanted + _IN_HAND:
        return Room(wanted, None)
    if slots >= workers + _IN_HAND:
        return Room(slots - _IN_HAND, slots)
    return Room(min(wanted, max(lookahead, 2 * workers)), 0)
