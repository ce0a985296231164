"""One run folder as figures: what every report shows, computed once: a :class:`Run` in, a :class:`Summary` out.

Nothing is estimated: a figure that the records do not carry is None, and a ``..._missing`` field says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stoker.core.texts import escaped
from stoker.core.units import format_count
from stoker.records.events import (
    CacheUsed,
    Notice,
    Progress,
    RunEnded,
    SampleQuarantined,
    SizesChosen,
    WorkerLost,
)
from stoker.records.runlog import Run
from stoker.ui.advice import Advice, LimitingResource, Situation, advise, find_limit
from stoker.ui.loaders import (
    LoaderSummary,
    headline_weight,
    last_openings,
    records_of,
    still_growing,
    summarise_loader,
)
from stoker.ui.windows import monotone, overall_window

MAX_LISTED = 200
"""Notices and incidents beyond this are counted, not kept: a report is for reading."""


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
    """One rank of a run of several: its main loader."""

    rank: int
    samples_per_s: float | None
    input_wait_frac: float | None
    workers: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run, also an unfinished one."""

    run_id: str
    folder: str
    argv: list[str]
    started_unix_s: float
    duration_s: float
    """Seconds to the last record."""
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
    """Number of the loader that headlines are about: of those that train, else of all, the one that took most time."""
    lost_workers: list[LostWorkers]
    quarantined: list[QuarantinedSample]
    notices: list[NoticeLine]
    limit: LimitingResource
    advice: Advice
    caveats: list[str]
    """Notes on the records themselves."""
    cache: CacheUsed | None = None
    """What was read through the data cache; None where it was not used."""
    sizes: SizesChosen | None = None
    """How many training workers the program has, and why; None where stoker did not start them."""

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
    loaders = [summarise_loader(run, opened) for opened in last_openings(run)]
    main = max(loaders, key=_weight, default=None)
    ended = records_of(run, RunEnded)
    situation = Situation(
        program=list(header.argv),
        run=as_typed(run.folder) if run.folder else "",
        cores=header.cores / max(1, header.local_world_size),
        config=header.config,
        tier=main.tier if main else "",
        reason=main.reason if main else "",
        window=main.end if main else None,
        window_missing=main.end_missing if main else "",
        growing=main is not None and still_growing(main),
        settled=main.settled_reason if main else "",
    )
    limit = find_limit(situation)
    return Summary(
        run_id=header.run_id,
        folder=escaped(str(run.folder)) if run.folder else "",
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
        cache=next(reversed(records_of(run, CacheUsed)), None),
        sizes=next(reversed(records_of(run, SizesChosen)), None),
    )


def as_typed(folder: Path | str) -> str:
    """The run folder as a person would type it from here."""
    folder = Path(folder)
    return escaped(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


def _weight(loader: LoaderSummary) -> tuple[bool, float, int]:
    active_s = loader.overall.active_s if loader.overall else 0.0
    return headline_weight(loader.optimizer_steps, active_s, loader.batches)


def _lost(run: Run) -> list[LostWorkers]:
    by_cause: dict[str, list[WorkerLost]] = {}
    for event in records_of(run, WorkerLost):
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
        for event in records_of(run, SampleQuarantined)[:MAX_LISTED]
    ]


def _notices(run: Run) -> list[NoticeLine]:
    """Each line once, in the order of first appearance."""
    notices = records_of(run, Notice)
    counts = Counter(event.text for event in notices)
    first: dict[str, float] = {}
    for event in notices:
        first.setdefault(event.text, event.t_s)
    return [NoticeLine(t_s=t_s, text=text, count=counts[text]) for text, t_s in list(first.items())[:MAX_LISTED]]


def _rank(run: Run) -> RankSummary:
    """The main loader of a rank in four figures."""
    found = [monotone(records_of(run, Progress, opened.loader)) for opened in last_openings(run)]
    known = [(records[-1], window) for records in found if (window := overall_window(records))]
    last, window = max(
        known,
        key=lambda pair: headline_weight(pair[0].optimizer_steps, pair[1].active_s, pair[0].batches),
        default=(None, None),
    )
    workers = [record.workers for record in records_of(run, Progress, last.loader) if record.workers] if last else []
    return RankSummary(
        rank=run.header.rank,
        samples_per_s=window.samples_per_s if window else None,
        input_wait_frac=window.split.input_wait_frac if window else None,
        workers=workers[-1] if workers else 0,
    )


def _caveats(run: Run) -> list[str]:
    caveats: list[str] = []
    if run.header.format < 2 and records_of(run, Progress):
        caveats.append("recorded by an earlier stoker: rates are too high, and input wait is too low")
    if run.folder is not None and not records_of(run, RunEnded):
        caveats.append("no end record: killed or still running; figures end at the last record")
    if run.skipped:
        caveats.append(f"{format_count(run.skipped, 'line')} of the run folder could not be read")
    return caveats
