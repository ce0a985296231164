"""One run folder as figures: what every report shows, computed once. Pure: a :class:`Run` in, a :class:`Summary` out.

Nothing is estimated: a figure that the records do not carry is None, and a ``..._missing`` field says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from stoker.core.events import (
    Event,
    IterationStarted,
    LoaderOpened,
    Notice,
    Progress,
    RunEnded,
    SampleQuarantined,
    WorkerLost,
    WorkersChanged,
)
from stoker.core.runlog import Run
from stoker.ui.advice import Advice, Limit, Situation, advise, find_limit
from stoker.ui.figures import write_plural
from stoker.ui.windows import MIN_END_BATCHES, MIN_START_BATCHES, Window, between, end_window, monotone, start_window

MAX_LISTED = 200
"""Notices and incidents beyond this are counted, not kept: a report is for reading."""

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
    overall: Window | None
    start: Window | None
    """The first batches with exactly the declared workers, already on stoker's transport."""
    start_missing: str
    end: Window | None
    end_missing: str
    speedup: float | None
    """Rate at the end over rate at the start."""
    workers_last: int
    workers_max: int
    changes: list[WorkerChange]
    settled_reason: str
    """What the policy said last about the number of workers."""
    lost: int
    released: int
    """Work items issued again after a worker was lost."""
    quarantined: int


class LostWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """Data workers lost for one cause."""

    cause: str
    count: int
    released: int
    first_s: float
    stack: str
    """Where one of them was, if known."""


class QuarantinedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was left out or replaced."""

    t_s: float
    loader: int
    index: str
    path: str
    seed: int
    action: str


class NoticeLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line shown during the run, and how often."""

    t_s: float
    text: str
    count: int


class RankSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of a run of several: its busiest loader."""

    rank: int
    samples_per_s: float | None
    input_wait_frac: float | None
    workers: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run, or what is known of it so far."""

    run_id: str
    folder: str
    argv: list[str]
    started_unix_s: float
    duration_s: float
    """To the last record."""
    outcome: str
    """``finished``, an exception's class name, or empty when the run left no end record."""
    hostname: str
    cores: float
    memory_bytes: int
    accelerator: str
    versions: dict[str, str]
    config: dict[str, object]
    rank: int
    world_size: int
    ranks: list[RankSummary]
    """Every rank that left records; empty for a run of one."""
    loaders: list[LoaderSummary]
    main: int | None
    """Number of the loader that took most of the time: headlines are about it."""
    lost_workers: list[LostWorkers]
    quarantined: list[QuarantinedSample]
    notices: list[NoticeLine]
    limit: Limit
    advice: Advice
    caveats: list[str]
    """What the reader should know about the records themselves."""

    def main_loader(self) -> LoaderSummary | None:
        """The loader that headlines are about."""
        return next((loader for loader in self.loaders if loader.loader == self.main), None)


def summarise(run: Run, others: Sequence[Run] = ()) -> Summary:
    """The figures of one rank's records.

    Args:
        run: the rank to report.
        others: all ranks of the run (this one may be among them); their headline figures are listed.
    """
    header = run.header
    loaders = [_loader(run, opened) for opened in _first_openings(run)]
    main = max(loaders, key=_weight, default=None)
    ended = _of(run, RunEnded)
    situation = Situation(
        program=list(header.argv),
        run=str(run.folder) if run.folder else header.run_id,
        cores=header.cores / max(1, header.local_world_size),
        config=header.config,
        tier=main.tier if main else "",
        reason=main.reason if main else "",
        window=main.end if main else None,
        window_missing=main.end_missing if main else "",
        growing=main is not None and _still_growing(main),
    )
    limit = find_limit(situation)
    return Summary(
        run_id=header.run_id,
        folder=str(run.folder) if run.folder else "",
        argv=list(header.argv),
        started_unix_s=header.started_unix_s,
        duration_s=max((event.t_s for event in run.events), default=0.0),
        outcome=ended[-1].outcome if ended else "",
        hostname=header.hostname,
        cores=header.cores,
        memory_bytes=header.memory_bytes,
        accelerator=header.accelerator,
        versions={
            "python": header.python,
            "stoker": header.stoker,
            "torch": header.torch,
            "numpy": header.numpy,
        },
        config=header.config,
        rank=header.rank,
        world_size=header.world_size,
        ranks=[_rank(other) for other in others] if len(others) > 1 else [],
        loaders=loaders,
        main=main.loader if main else None,
        lost_workers=_lost(run),
        quarantined=_quarantined(run),
        notices=_notices(run),
        limit=limit,
        advice=advise(situation, limit),
        caveats=_caveats(run),
    )


def _weight(loader: LoaderSummary) -> tuple[float, int]:
    """What makes a loader the main one: its time, or its batches where too few of them were timed."""
    return loader.overall.active_s if loader.overall else 0.0, loader.batches


def _of(run: Run, kind: type[_E], loader: int | None = None) -> list[_E]:
    """The records of one class, of one loader if asked."""
    found = [event for event in run.events if isinstance(event, kind)]
    return found if loader is None else [event for event in found if getattr(event, "loader", None) == loader]


def _first_openings(run: Run) -> list[LoaderOpened]:
    first: dict[int, LoaderOpened] = {}
    for opened in _of(run, LoaderOpened):
        first.setdefault(opened.loader, opened)
    return [first[number] for number in sorted(first)]


def _loader(run: Run, opened: LoaderOpened) -> LoaderSummary:
    records = monotone(_of(run, Progress, opened.loader))
    changes = _changes(run, opened)
    iterations = _of(run, IterationStarted, opened.loader)
    lost = _of(run, WorkerLost, opened.loader)
    last = records[-1] if records else None
    away = [change.t_s for change in changes if change.workers != opened.declared_workers]
    start, start_missing = _start(opened, records, iterations, away[0] if away else None)
    used = start.first_batch + start.batches if start else 0
    end = end_window(records, changes[-1].t_s if changes else None, used)
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
        overall=between(None, last) if last and last.batches >= MIN_START_BATCHES else None,
        start=start,
        start_missing=start_missing,
        end=end,
        end_missing="" if end else _end_missing(opened, last.batches if last else 0),
        speedup=_speedup(start, end),
        workers_last=next((number for number in reversed(seen[: len(records)]) if number), 0),
        workers_max=max(seen, default=0),
        changes=changes,
        settled_reason=next((event.reason for event in reversed(_of(run, WorkersChanged, opened.loader))), ""),
        lost=len(lost),
        released=sum(event.released for event in lost),
        quarantined=len(_of(run, SampleQuarantined, opened.loader)),
    )


def _changes(run: Run, opened: LoaderOpened) -> list[WorkerChange]:
    """Decisions that changed the number of workers; those that moved only the depth are left out."""
    changes: list[WorkerChange] = []
    workers = opened.declared_workers
    for event in _of(run, WorkersChanged, opened.loader):
        if event.workers != workers:
            changes.append(WorkerChange(t_s=event.t_s, workers=event.workers, depth=event.depth, reason=event.reason))
        workers = event.workers
    return changes


def _start(
    opened: LoaderOpened,
    records: list[Progress],
    iterations: list[IterationStarted],
    changed_s: float | None,
) -> tuple[Window | None, str]:
    """The start window, or why there is none."""
    if not records or not records[-1].batches:
        return None, _unmeasured(opened)
    if iterations and iterations[0].workers != opened.declared_workers:
        began = write_plural(iterations[0].workers, "worker")
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
    return f"run too short: {write_plural(batches, 'batch', 'batches')}"


def _unmeasured(opened: LoaderOpened) -> str:
    return "not measured: left to torch" if opened.tier == "stock" else "no batch was recorded"


def _speedup(start: Window | None, end: Window | None) -> float | None:
    if start is None or end is None:
        return None
    if start.samples_per_s and end.samples_per_s:
        return end.samples_per_s / start.samples_per_s
    return end.batches_per_s / start.batches_per_s


def _still_growing(loader: LoaderSummary) -> bool:
    """Whether workers were added so late that the end window does not show their effect."""
    if len(loader.changes) < 1 or loader.end is None:
        return False
    before = loader.changes[-2].workers if len(loader.changes) > 1 else loader.declared_workers
    return loader.changes[-1].workers > before and loader.changes[-1].t_s > loader.end.from_s


def _lost(run: Run) -> list[LostWorkers]:
    by_cause: dict[str, list[WorkerLost]] = {}
    for event in _of(run, WorkerLost):
        by_cause.setdefault(event.cause, []).append(event)
    return [
        LostWorkers(
            cause=cause,
            count=len(events),
            released=sum(event.released for event in events),
            first_s=events[0].t_s,
            stack=next((event.stack for event in events if event.stack), ""),
        )
        for cause, events in list(by_cause.items())[:MAX_LISTED]
    ]


def _quarantined(run: Run) -> list[QuarantinedSample]:
    return [
        QuarantinedSample(
            t_s=event.t_s,
            loader=event.loader,
            index=event.index,
            path=event.path,
            seed=event.seed,
            action=event.action,
        )
        for event in _of(run, SampleQuarantined)[:MAX_LISTED]
    ]


def _notices(run: Run) -> list[NoticeLine]:
    """Each line once, in the order of first appearance."""
    notices = _of(run, Notice)
    counts = Counter(event.text for event in notices)
    first: dict[str, float] = {}
    for event in notices:
        first.setdefault(event.text, event.t_s)
    return [NoticeLine(t_s=t_s, text=text, count=counts[text]) for text, t_s in list(first.items())[:MAX_LISTED]]


def _rank(run: Run) -> RankSummary:
    """The busiest loader of a rank in four figures."""
    windows = {
        opened.loader: between(None, records[-1])
        for opened in _first_openings(run)
        if (records := monotone(_of(run, Progress, opened.loader)))
    }
    known = [(number, window) for number, window in windows.items() if window]
    number, window = max(known, key=lambda pair: pair[1].active_s, default=(None, None))
    workers = [record.workers for record in _of(run, Progress, number) if record.workers] if window else []
    return RankSummary(
        rank=run.header.rank,
        samples_per_s=window.samples_per_s if window else None,
        input_wait_frac=window.split.input_wait_frac if window else None,
        workers=workers[-1] if workers else 0,
    )


def _caveats(run: Run) -> list[str]:
    caveats: list[str] = []
    if not _of(run, RunEnded):
        caveats.append("no end record: killed or still running; figures end at the last record")
    if run.skipped:
        caveats.append(f"{write_plural(run.skipped, 'line')} of the run folder could not be read")
    return caveats
