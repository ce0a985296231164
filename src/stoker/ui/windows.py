"""What happened between two records of a loader: rates and shares, from cumulative counters.

Pure. A window is a difference of two :class:`~stoker.records.events.Progress` records (or of one and nothing), so every
figure of a report can be traced to two lines of the run folder.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.records.events import BASELINE_BATCHES, Progress

MIN_START_BATCHES = 5
"""Fewer batches than this say nothing about the start."""
MIN_START_S, LONG_START_S = 0.1, 0.25
"""Nor does a start that is shorter than the first; up to the second it takes more batches, where they are short."""
MIN_END_BATCHES = 20
"""Fewer batches than this say nothing about the state a run ended in."""
END_FRAC = 0.2
"""The end window is this share of all batches, if it is at least ``MIN_END_BATCHES``."""

_SHORTEST_S = 1e-6
"""Below this a rate would be a division by the clock's noise."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the step time; they sum to 1."""

    input_wait_frac: float
    """The program waited inside ``iter()`` and ``next()``."""
    h2d_frac: float
    """Copies to the accelerator."""
    compute_frac: float
    """From the batch's arrival to the end of the optimizer step, without copies."""
    other_frac: float
    """The rest of the program's loop, other loaders' input wait included."""

    def parts(self) -> tuple[float, float, float, float]:
        """The four shares in the order in which every report shows them."""
        return self.input_wait_frac, self.h2d_frac, self.compute_frac, self.other_frac


class RecordedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """A loader between two records."""

    from_s: float
    """Run time of the delivery after which the window begins."""
    to_s: float
    """Run time of its last delivery."""
    first_batch: int
    """Batches delivered before the window."""
    batches: int
    samples: int
    active_s: float
    """Wall time from the first delivery to the last one, without the pauses between the loader's iterations."""
    batches_per_s: float
    samples_per_s: float | None
    """None where batch sizes are unknown."""
    split: Split
    starved_frac: float
    """Share of the deliveries that found the next batch not ready."""
    workers: int
    """Data workers during the window."""
    depth: int
    """Batches that may be in flight for each of them; 0 where none runs."""
    handover_frac: float | None
    """Part of the input wait in which the batch was made already: stoker's own time. None where it is not known."""
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


def between(first: Progress | None, last: Progress, *, until_now: bool = False) -> RecordedWindow | None:
    """The window from ``first`` (or the start of the run) to ``last``; None if nothing was delivered or timed.

    Args:
        first: the window begins after the last delivery that it counts.
        last: the window ends with the last delivery that it counts.
        until_now: count a wait that still lasts at ``last``, for a run in progress.
    """
    batches = last.batches - (first.batches if first else 0)
    parts = [max(0.0, new - old) for new, old in zip(_times(last), _times(first) if first else (0.0,) * 4, strict=True)]
    parts[3] += max(0.0, _wall_s(first, last) - sum(parts))  # time outside all parts is time spent, too
    if until_now:
        parts[0] += last.waiting_s
    active_s = sum(parts)
    if batches <= 0 or active_s < _SHORTEST_S:
        return None
    samples = max(0, last.samples - (first.samples if first else 0))
    busy, idle, cpu = _worker_times(first, last)
    shares = [part / active_s for part in parts]
    return RecordedWindow(
        from_s=delivered_s(first) if first else max(0.0, delivered_s(last) - active_s),
        to_s=delivered_s(last),
        first_batch=first.batches if first else 0,
        batches=batches,
        samples=samples,
        active_s=active_s,
        batches_per_s=batches / active_s,
        samples_per_s=samples / active_s if samples else None,
        split=Split(input_wait_frac=shares[0], h2d_frac=shares[1], compute_frac=shares[2], other_frac=shares[3]),
        handover_frac=_handover_frac(first, last, parts[0], active_s),
        starved_frac=_clamp((last.starved_steps - (first.starved_steps if first else 0)) / batches),
        workers=last.workers,
        depth=depth_of(last),
        worker_busy_frac=busy / (busy + idle) if busy + idle > _SHORTEST_S else None,
        worker_cpu_frac=cpu / busy if busy > _SHORTEST_S else None,
        cores_used=cpu / active_s,
    )


def delivered_s(record: Progress) -> float:
    """When the last batch that a record counts was delivered; in format 1 at most that time is known."""
    return record.delivered_s or record.t_s


def overall_window(records: Sequence[Progress]) -> RecordedWindow | None:
    """The window from the first delivery to the last one: the time of the first batch says nothing about the rate.

    Args:
        records: a loader's records, monotone.
    """
    if not records:
        return None
    first = next((record for record in records if 0 < record.batches < records[-1].batches), None)
    return between(first if first is not None and first.batches == 1 else None, records[-1])


def start_window(records: Sequence[Progress], changed_s: float | None) -> RecordedWindow | None:
    """The first batches after the warm-up, before any change.

    The first batch waits for processes to start. The next ones are made meanwhile, by workers with cold memory, during
    the probe, into a queue that fills unread. So the window begins when all batches in flight at the first delivery
    have been delivered; each of the first workers has made a batch by then.

    Args:
        records: a loader's records, monotone.
        changed_s: run time of the first change (of workers, depth or cut); None if there was none.

    Returns:
        None if fewer than ``MIN_START_BATCHES`` batches were recorded by then.
    """
    before = [record for record in records if record.batches and (changed_s is None or record.t_s <= changed_s)]
    if not before:
        return None
    warm = before[0].batches + before[0].capacity
    first = next((record for record in before if record.batches >= warm), None)
    if first is None:
        return None
    enough = (
        record
        for record in before
        if record.batches >= first.batches + BASELINE_BATCHES
        and delivered_s(record) >= delivered_s(first) + LONG_START_S
    )
    window = between(first, next(enough, before[-1]))
    if window is None or window.batches < MIN_START_BATCHES or window.active_s < MIN_START_S:
        return None
    return _with_workers(window, records)


def end_window(records: Sequence[Progress], changed_s: float | None, not_before: int) -> RecordedWindow | None:
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
    usable = [record for record in usable if record.batches]
    if not usable:
        return None
    first = next((record for record in reversed(usable) if record.batches <= last.batches - wanted), usable[0])
    if changed_s is not None and delivered_s(first) < changed_s:
        first = next((record for record in usable if delivered_s(record) >= changed_s), first)
    window = between(first, last)
    return _with_workers(window, records) if window else None


def _with_workers(window: RecordedWindow, records: Sequence[Progress]) -> RecordedWindow:
    """The window with the number of workers, and their depth, that most of its records saw.

    The last record alone would mislead: at the end of an iteration its workers may be gone already.
    """
    seen = [record for record in records if window.from_s < delivered_s(record) <= window.to_s and record.workers > 0]
    if not seen:
        return window
    workers = _most([record.workers for record in seen])
    depth = _most([depth_of(record) for record in seen if record.workers == workers])
    return msgspec.structs.replace(window, workers=workers, depth=depth)


def _most(numbers: Sequence[int]) -> int:
    return max(set(numbers), key=lambda number: (numbers.count(number), number))


def depth_of(record: Progress) -> int:
    """Batches that may be in flight for each data worker; 0 where none runs."""
    return record.capacity // record.workers if record.workers else 0


def _wall_s(first: Progress | None, last: Progress) -> float:
    """Time from delivery to delivery without pauses; 0.0 where the records do not say."""
    if first is None or not first.delivered_s or not last.delivered_s:
        return 0.0
    return last.delivered_s - first.delivered_s - (last.paused_s - first.paused_s)


def _handover_frac(first: Progress | None, last: Progress, wait_s: float, active_s: float) -> float | None:
    before_s = first.starved_s if first else 0.0
    if last.starved_s is None or before_s is None:
        return None
    return _clamp((wait_s - (last.starved_s - before_s)) / active_s)


def _times(record: Progress) -> tuple[float, float, float, float]:
    return record.input_wait_s, record.h2d_s, record.compute_s, record.other_s


def _counters(record: Progress) -> tuple[float, ...]:
    return (
        record.t_s,
        record.delivered_s,
        record.paused_s,
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
