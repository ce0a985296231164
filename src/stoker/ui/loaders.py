"""One loader's records as figures: its windows, its workers, and why a figure is missing."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stoker.core.units import format_count
from stoker.records.events import (
    ComparisonEnded,
    CutChosen,
    Event,
    IterationStarted,
    LoaderOpened,
    PairCompared,
    Progress,
    SampleQuarantined,
    WorkerLost,
    WorkersChanged,
)
from stoker.records.runlog import Run
from stoker.records.versus import Comparison, Pair, compare, shortfall
from stoker.ui.advice import NO_BATCH
from stoker.ui.cuts import CutSummary, latest_cuts, summarise_cut
from stoker.ui.windows import (
    LONG_START_S,
    MIN_END_BATCHES,
    MIN_START_BATCHES,
    RecordedWindow,
    depth_of,
    end_window,
    monotone,
    overall_window,
    start_window,
)

_E = TypeVar("_E", bound=Event)


class WorkerChange(msgspec.Struct, frozen=True, kw_only=True):
    """The policy chose another number of data workers."""

    t_s: float
    workers: int
    depth: int
    reason: str


class LoaderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One loader of the program."""

    loader: int
    site: str
    dataset: str
    tier: str
    reason: str
    evidence: list[str]
    length: int | None
    batch_size: int | None
    declared_workers: int
    iterations: int
    batches: int
    samples: int
    bytes: int
    overall: RecordedWindow | None
    start: RecordedWindow | None
    """The first batches after the warm-up, with exactly the declared workers, already on stoker's transport."""
    start_missing: str
    end: RecordedWindow | None
    end_missing: str
    changed: list[str]
    """What was changed between start and end: ``2 → 7 workers``; nothing that the run would be steady with."""
    speedup: float | None
    """Rate at the end over rate at the start, where something was changed in between and both lasted long enough."""
    workers_last: int
    workers_max: int
    away_max: int
    """Most data workers on other machines at a time."""
    items_away: int
    """Work items that other machines have made."""
    changes: list[WorkerChange]
    settled_reason: str
    """The policy's last reason for the number of workers."""
    lost: int
    released: int
    """Work items issued again after a worker was lost."""
    quarantined: int
    optimizer_steps: int
    """Made with its batches; 0 for evaluation, and where the records are older than the counter."""
    cut: CutSummary | None = None
    """The cut of its steps; None if no step was recorded."""
    versus: Comparison | None = None
    """The comparison with torch's own workers (`--versus-plain`)."""
    versus_missing: str = ""
    """Why it was not compared, as half a sentence; empty if it was, or if no comparison was requested."""


def records_of(run: Run, kind: type[_E], loader: int | None = None) -> list[_E]:
    """The records of one class, of one loader if asked."""
    found = [event for event in run.events if isinstance(event, kind)]
    return found if loader is None else [event for event in found if getattr(event, "loader", None) == loader]


def last_openings(run: Run) -> list[LoaderOpened]:
    """The final tier of each loader, by number; records before the end of a trial or probe are provisional."""
    last = {opened.loader: opened for opened in records_of(run, LoaderOpened)}
    return [last[number] for number in sorted(last)]


def summarise_loader(run: Run, opened: LoaderOpened) -> LoaderSummary:
    """The figures of a loader."""
    records = monotone(records_of(run, Progress, opened.loader))
    pairs = [event.pair for event in records_of(run, PairCompared, opened.loader)]
    changes = _changes(run, opened)
    iterations = records_of(run, IterationStarted, opened.loader)
    lost = records_of(run, WorkerLost, opened.loader)
    last = records[-1] if records else None
    cut = summarise_cut(latest_cuts(run.events, opened.loader))
    times = _change_times(run, opened, records)
    start, start_missing = _start(opened, records, iterations, min(times, default=None))
    used = start.first_batch + start.batches if start else 0
    end = end_window(records, max(times, default=None), used)
    changed = _changed(opened, start, end, changes, cut)
    seen = [*(record.workers for record in records), *(started.workers for started in iterations)]
    return LoaderSummary(
        loader=opened.loader,
        site=opened.site,
        dataset=opened.dataset,
        tier=opened.tier,
        reason=opened.reason,
        evidence=list(opened.evidence),
        length=opened.length,
        batch_size=opened.batch_size,
        declared_workers=opened.declared_workers,
        iterations=len(iterations),
        batches=last.batches if last else 0,
        samples=last.samples if last else 0,
        bytes=last.bytes if last else 0,
        overall=overall_window(records) if last and last.batches >= MIN_START_BATCHES else None,
        start=start,
        start_missing=start_missing,
        end=end,
        end_missing="" if end else _end_missing(opened, last.batches if last else 0),
        changed=changed,
        speedup=_speedup(start, end) if changed else None,
        workers_last=next((number for number in reversed(seen[: len(records)]) if number), 0),
        workers_max=max(seen, default=0),
        away_max=max((record.away for record in records), default=0),
        items_away=last.items_away if last else 0,
        changes=changes,
        settled_reason=next((event.reason for event in reversed(records_of(run, WorkersChanged, opened.loader))), ""),
        lost=len(lost),
        released=sum(event.released for event in lost),
        quarantined=len(records_of(run, SampleQuarantined, opened.loader)),
        optimizer_steps=last.optimizer_steps if last else 0,
        cut=cut,
        versus=compare(pairs),
        versus_missing=_not_compared(run, opened.loader, pairs),
    )


def _not_compared(run: Run, loader: int, pairs: list[Pair]) -> str:
    ended = records_of(run, ComparisonEnded, loader)
    asked = run.header.config.get("versus_plain") is not None
    if compare(pairs) or not (asked or pairs or ended):
        return ""
    return ended[-1].reason if ended and ended[-1].reason else shortfall(pairs)


def _changes(run: Run, opened: LoaderOpened) -> list[WorkerChange]:
    """Decisions that changed the number of workers; those that moved only the depth are left out."""
    changes: list[WorkerChange] = []
    workers = opened.declared_workers
    for event in records_of(run, WorkersChanged, opened.loader):
        if event.workers != workers:
            changes.append(WorkerChange(t_s=event.t_s, workers=event.workers, depth=event.depth, reason=event.reason))
        workers = event.workers
    return changes


def _change_times(run: Run, opened: LoaderOpened, records: list[Progress]) -> list[float]:
    """When something was changed: the number of workers, the depth of their queues, the cut."""
    workers = opened.declared_workers
    depth = next((depth_of(record) for record in records if record.workers), 0)
    times: list[float] = []
    for event in records_of(run, WorkersChanged, opened.loader):
        if (event.workers, event.depth) != (workers, depth):
            times.append(event.t_s)
        workers, depth = event.workers, event.depth
    times += [cut.t_s for cut in records_of(run, CutChosen, opened.loader) if cut.outcome == "moved"]
    if not opened.declared_workers:  # the policy does not decide a loader's move to data workers
        times += [record.t_s for record in records if record.workers][:1]
    return times


def _changed(
    opened: LoaderOpened,
    start: RecordedWindow | None,
    end: RecordedWindow | None,
    changes: list[WorkerChange],
    cut: CutSummary | None,
) -> list[str]:
    """What changed between the start and the end of a run; without a start, all changes."""
    moved = ["part of the step moved to data workers"] if cut is not None and cut.outcome == "moved" else []
    if start is None or end is None:
        steps = [opened.declared_workers, *(change.workers for change in changes)]
        return [*([f"{steps[0]} → {format_count(steps[-1], 'worker')}"] if changes else []), *moved]
    found: list[str] = []
    if start.workers != end.workers:
        found.append(f"{start.workers} → {format_count(end.workers, 'worker')}")
    if start.depth != end.depth and start.workers and end.workers:
        found.append(f"{start.depth} → {end.depth} batches ahead for each worker")
    return [*found, *moved]


def _start(
    opened: LoaderOpened,
    records: list[Progress],
    iterations: list[IterationStarted],
    changed_s: float | None,
) -> tuple[RecordedWindow | None, str]:
    """The start window, or why there is none."""
    if not records or not records[-1].batches:
        return None, _unmeasured(opened)
    if iterations and iterations[0].workers != opened.declared_workers:
        began = format_count(iterations[0].workers, "worker")
        return None, f"not measured: the run began with {began}, the program declares {opened.declared_workers}"
    window = start_window(records, changed_s)
    if window:
        return window, ""
    if changed_s is not None:
        return None, "not measured: the number of workers changed within the first batches"
    return None, _too_short(records[-1].batches)


def _end_missing(opened: LoaderOpened, batches: int) -> str:
    if not batches:
        return _unmeasured(opened)
    if batches < 2 * MIN_END_BATCHES:
        return _too_short(batches)
    return "not measured: too few records after the start"


def _too_short(batches: int) -> str:
    return f"run too short: {format_count(batches, 'batch', 'batches')}"


def _unmeasured(opened: LoaderOpened) -> str:
    return "not measured: left to torch" if opened.tier == "stock" else NO_BATCH


def _speedup(start: RecordedWindow | None, end: RecordedWindow | None) -> float | None:
    if start is None or end is None or min(start.active_s, end.active_s) < LONG_START_S:
        return None
    if start.samples_per_s and end.samples_per_s:
        return end.samples_per_s / start.samples_per_s
    return end.batches_per_s / start.batches_per_s


def headline_weight(optimizer_steps: int, active_s: float, batches: int) -> tuple[bool, float, int]:
    """What makes a loader the main one: that it trains, then its time, then its batches where too few were timed.

    By time alone a long evaluation would hide the training that a person wants to see fed.
    """
    return optimizer_steps > 0, active_s, batches


def still_growing(loader: LoaderSummary) -> bool:
    """Whether workers were added so late that the end window does not show their effect."""
    if len(loader.changes) < 1 or loader.end is None:
        return False
    before = loader.changes[-2].workers if len(loader.changes) > 1 else loader.declared_workers
    return loader.changes[-1].workers > before and loader.changes[-1].t_s > loader.end.from_s
