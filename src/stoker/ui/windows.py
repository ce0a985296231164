"""What happened between two records of a loader: rates and shares, from cumulative counters.

Pure. A window is a difference of two :class:`~stoker.core.events.Progress` records (or of one and nothing), so every
figure of a report can be traced to two lines of the run folder.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.core.events import Progress

FIRST_BATCHES = 20
"""The start window ends with the first record of at least so many batches."""
MIN_START_BATCHES = 5
"""Fewer batches than this say nothing about the start."""
MIN_END_BATCHES = 20
"""Fewer batches than this say nothing about the state a run ended in."""
END_FRAC = 0.2
"""The end window is this share of all batches, if it is at least ``MIN_END_BATCHES``."""

_SHORTEST_S = 1e-6
"""Below this a rate would be a division by the clock's noise."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the step time; they sum to 1."""

    input_wait_frac: float
    """The program waited inside ``next()``."""
    h2d_frac: float
    """Copies to the accelerator."""
    compute_frac: float
    """From the batch's arrival to the end of the optimizer step, without copies."""
    other_frac: float
    """The rest of the program's loop."""

    def parts(self) -> tuple[float, float, float, float]:
        """The four shares in the order in which every report shows them."""
        return self.input_wait_frac, self.h2d_frac, self.compute_frac, self.other_frac


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A loader between two records."""

    from_s: float
    """Run time of the first record (or the first batch's, for a window from the very start)."""
    to_s: float
    """Run time of the last record."""
    first_batch: int
    """Batches delivered before the window."""
    batches: int
    samples: int
    active_s: float
    """Time of the loader's own steps: the sum of the four parts. Pauses between iterations do not count."""
    batches_per_s: float
    samples_per_s: float | None
    """None where batch sizes are unknown."""
    split: Split
    starved_frac: float
    """Share of the deliveries that found the next batch not ready."""
    workers: int
    """Data workers during the window."""
    worker_busy_frac: float | None
    """Share of the data workers' time spent on work items; None where no worker ran."""
    worker_cpu_frac: float | None
    """CPU time per wall time of a work item; low where workers wait on storage."""
    cores_used: float
    """CPU seconds that the work items took per second of the window."""


def monotone(records: Sequence[Progress]) -> list[Progress]:
    """The records whose counters never fall; what a damaged or mixed file holds beyond them is left out."""
    kept: list[Progress] = []
    for record in records:
        if not kept or all(new >= old for new, old in zip(_counters(record), _counters(kept[-1]), strict=True)):
            kept.append(record)
    return kept


def between(first: Progress | None, last: Progress) -> Window | None:
    """The window from ``first`` (or the start of the run) to ``last``; None where nothing was delivered or timed."""
    batches = last.batches - (first.batches if first else 0)
    parts = [max(0.0, new - old) for new, old in zip(_times(last), _times(first) if first else (0.0,) * 4, strict=True)]
    active_s = sum(parts)
    if batches <= 0 or active_s < _SHORTEST_S:
        return None
    samples = max(0, last.samples - (first.samples if first else 0))
    busy, idle, cpu = _worker_times(first, last)
    shares = [part / active_s for part in parts]
    return Window(
        from_s=first.t_s if first else max(0.0, last.t_s - active_s),
        to_s=last.t_s,
        first_batch=first.batches if first else 0,
        batches=batches,
        samples=samples,
        active_s=active_s,
        batches_per_s=batches / active_s,
        samples_per_s=samples / active_s if samples else None,
        split=Split(input_wait_frac=shares[0], h2d_frac=shares[1], compute_frac=shares[2], other_frac=shares[3]),
        starved_frac=_clamp((last.starved_steps - (first.starved_steps if first else 0)) / batches),
        workers=last.workers,
        worker_busy_frac=busy / (busy + idle) if busy + idle > _SHORTEST_S else None,
        worker_cpu_frac=cpu / busy if busy > _SHORTEST_S else None,
        cores_used=cpu / active_s,
    )


def start_window(records: Sequence[Progress], changed_s: float | None) -> Window | None:
    """The first batches, before the number of workers first changed.

    Args:
        records: a loader's records, monotone.
        changed_s: run time of the first change away from the declared number; None if there was none.

    Returns:
        None where fewer than ``MIN_START_BATCHES`` batches were recorded by then. The first batch itself is left out
        where a record allows it: it waits for the workers to start, not for their pace.
    """
    before = [record for record in records if record.batches and (changed_s is None or record.t_s <= changed_s)]
    if not before:
        return None
    last = next((record for record in before if record.batches >= FIRST_BATCHES), before[-1])
    first = before[0] if before[0].batches <= 2 else None
    window = between(first, last)
    return _with_workers(window, records) if window and window.batches >= MIN_START_BATCHES else None


def end_window(records: Sequence[Progress], changed_s: float | None, not_before: int) -> Window | None:
    """The state in which the run ended: its last fifth, since the last change of the number of workers if it can be.

    Args:
        records: a loader's records, monotone.
        changed_s: run time of the last change of the number of workers.
        not_before: batches that the start window has used up.
    """
    if not records:
        return None
    last = records[-1]
    wanted = max(MIN_END_BATCHES, int(END_FRAC * last.batches))
    usable = [record for record in records if not_before <= record.batches <= last.batches - MIN_END_BATCHES]
    if not usable:
        return None
    first = next((record for record in reversed(usable) if record.batches <= last.batches - wanted), usable[0])
    if changed_s is not None and first.t_s < changed_s:
        first = next((record for record in usable if record.t_s >= changed_s), first)
    window = between(first, last)
    return _with_workers(window, records) if window else None


def _with_workers(window: Window, records: Sequence[Progress]) -> Window:
    """The window with the number of workers that most of its records saw.

    The last record alone would mislead: at the end of an iteration its workers may be gone already.
    """
    seen = [record.workers for record in records if window.from_s < record.t_s <= window.to_s]
    running = [workers for workers in seen if workers > 0]
    if not running:
        return window
    most = max(set(running), key=lambda number: (running.count(number), number))
    return msgspec.structs.replace(window, workers=most)


def _times(record: Progress) -> tuple[float, float, float, float]:
    return record.input_wait_s, record.h2d_s, record.compute_s, record.other_s


def _counters(record: Progress) -> tuple[float, ...]:
    return (
        record.t_s,
        record.batches,
        record.samples,
        record.bytes,
        *_times(record),
        record.starved_steps,
        record.worker_busy_s,
        record.worker_idle_s,
        record.worker_cpu_s,
    )


def _worker_times(first: Progress | None, last: Progress) -> tuple[float, float, float]:
    """Busy, idle and CPU seconds of the data workers in the window."""
    if first is None:
        return last.worker_busy_s, last.worker_idle_s, last.worker_cpu_s
    return (
        max(0.0, last.worker_busy_s - first.worker_busy_s),
        max(0.0, last.worker_idle_s - first.worker_idle_s),
        max(0.0, last.worker_cpu_s - first.worker_cpu_s),
    )


def _clamp(frac: float) -> float:
    return min(1.0, max(0.0, frac))
