"""The records of a service as figures, one model at a time; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from stoker.records.events import Event, ServedWindow, VersionStarted

_MOST_POINTS = 240


class ServedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the course."""

    from_s: float
    to_s: float
    answers_per_s: float
    shed_per_s: float
    p50_s: float | None
    """Mean of those of its seconds, weighted by answers; None without answers."""
    p99_s: float | None
    """The highest of its seconds."""
    batch: float | None


class ServedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a service did for one model."""

    model: str
    versions: list[VersionStarted]
    outcomes: dict[str, int]
    retries: int
    p99_s: float | None
    """The highest of any second with answers."""
    p50_s: float | None
    """Mean of the seconds, weighted by answers."""
    points: list[ServedPoint]


def served_models(events: Sequence[Event]) -> list[ServedSummary]:
    """The models of a run in the order of their first versions; none for a run that served nothing."""
    versions: dict[str, list[VersionStarted]] = {}
    windows: dict[str, list[ServedWindow]] = {}
    for event in events:
        if isinstance(event, VersionStarted):
            versions.setdefault(event.model, []).append(event)
        elif isinstance(event, ServedWindow):
            windows.setdefault(event.model, []).append(event)
    return [_summary(model, started, windows.get(model, [])) for model, started in versions.items()]


def _summary(model: str, versions: list[VersionStarted], windows: list[ServedWindow]) -> ServedSummary:
    outcomes: Counter[str] = Counter()
    for window in windows:
        outcomes.update(window.outcomes)
    span = -(-len(windows) // _MOST_POINTS) or 1
    points = [_point(windows[first : first + span]) for first in range(0, len(windows), span)]
    return ServedSummary(
        model=model, versions=versions, outcomes=dict(outcomes), retries=sum(each.retries for each in windows),
        p50_s=_mean_p50_s(windows), p99_s=_most_p99_s(windows), points=points,
    )  # fmt: skip


def _point(windows: Sequence[ServedWindow]) -> ServedPoint:
    seconds = sum(each.seconds for each in windows)
    shed = sum(each.outcomes.get(kind, 0) for each in windows for kind in ("refused", "dropped"))
    batches = [each.batch for each in windows if each.batch is not None]
    return ServedPoint(
        from_s=windows[0].t_s - windows[0].seconds, to_s=windows[-1].t_s,
        answers_per_s=sum(map(_answers, windows)) / seconds, shed_per_s=shed / seconds,
        p50_s=_mean_p50_s(windows), p99_s=_most_p99_s(windows),
        batch=sum(batches) / len(batches) if batches else None,
    )  # fmt: skip


def _answers(window: ServedWindow) -> int:
    return window.outcomes.get("answered", 0)


def _mean_p50_s(windows: Sequence[ServedWindow]) -> float | None:
    known = [(each.p50_s, _answers(each)) for each in windows if each.p50_s is not None and _answers(each)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def _most_p99_s(windows: Sequence[ServedWindow]) -> float | None:
    return max((each.p99_s for each in windows if each.p99_s is not None), default=None)
