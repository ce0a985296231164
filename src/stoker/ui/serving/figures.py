"""The records of a service as figures, one model at a time; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from stoker.records.events import Event, ServedWindow, VersionStarted

_MOST_POINTS = 240
_ROWS = 12


class ServedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A span of the course."""

    from_s: float
    to_s: float
    answers_per_s: float
    shed_per_s: float
    p50_s: float | None
    """Median of its answers; in records of earlier versions that of its seconds' medians, weighted."""
    p99_s: float | None
    """99th percentile of its answers; in records of earlier versions the highest of its seconds."""
    batch: float | None
    """Mean samples of its batches, each request of the same size."""


class ServedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a service did for one model."""

    model: str
    versions: list[VersionStarted]
    outcomes: dict[str, int]
    retries: int
    p99_s: float | None
    """The highest of any second with answers."""
    p50_s: float | None
    """Median of all answers; in records of earlier versions the median of the seconds' own, weighted by answers."""
    all_p99_s: float | None
    """99th percentile of all answers; None in records of earlier versions."""
    points: list[ServedPoint]
    rows: list[ServedPoint]
    """The same in a few spans."""


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
    return ServedSummary(
        model=model, versions=versions, outcomes=dict(outcomes), retries=sum(each.retries for each in windows),
        p50_s=_p50_s(windows), p99_s=_most_p99_s(windows), all_p99_s=_quantile_s(windows, 0.99),
        points=_points(windows, _MOST_POINTS), rows=_points(windows, _ROWS),
    )  # fmt: skip


def _points(windows: Sequence[ServedWindow], most: int) -> list[ServedPoint]:
    span = -(-len(windows) // most) or 1
    return [_point(windows[first : first + span]) for first in range(0, len(windows), span)]


def _point(windows: Sequence[ServedWindow]) -> ServedPoint:
    seconds = sum(each.seconds for each in windows)
    shed = sum(each.outcomes.get(kind, 0) for each in windows for kind in ("refused", "dropped"))
    return ServedPoint(
        from_s=windows[0].t_s - windows[0].seconds, to_s=windows[-1].t_s,
        answers_per_s=sum(map(_answers, windows)) / seconds, shed_per_s=shed / seconds,
        p50_s=_p50_s(windows), p99_s=_most_p99_s(windows) if (p99_s := _quantile_s(windows, 0.99)) is None else p99_s,
        batch=_batch(windows),
    )  # fmt: skip


def _answers(window: ServedWindow) -> int:
    return window.outcomes.get("answered", 0)


def _batch(windows: Sequence[ServedWindow]) -> float | None:
    """All samples over all batches: a second with few batches counts little. None without answers from batches."""
    pairs = [(_answers(each), each.batch) for each in windows if each.batch]
    answered = sum(answers for answers, _ in pairs)
    return answered / sum(answers / batch for answers, batch in pairs) if answered else None


def _p50_s(windows: Sequence[ServedWindow]) -> float | None:
    """The median of all answers; where their times are not known that of the seconds' medians, weighted by answers."""
    if (found := _quantile_s(windows, 0.5)) is not None:
        return found
    return _weighted_s([(each.p50_s, _answers(each)) for each in windows if each.p50_s is not None], 0.5)


def _quantile_s(windows: Sequence[ServedWindow], frac: float) -> float | None:
    """The time within which this share of the answers came; None where that is not known of all."""
    answered = [each for each in windows if _answers(each)]
    if any(each.latencies is None for each in answered):
        return None
    return _weighted_s([pair for each in answered for pair in each.latencies or ()], frac)


def _weighted_s(pairs: Sequence[tuple[float, int]], frac: float) -> float | None:
    """The least value with at least this share of the weight up to it; None without weight."""
    total = sum(weight for _, weight in pairs)
    reached = 0
    for value, weight in sorted(pairs):
        reached += weight
        if weight and reached >= frac * total:
            return value
    return None


def _most_p99_s(windows: Sequence[ServedWindow]) -> float | None:
    return max((each.p99_s for each in windows if each.p99_s is not None), default=None)
