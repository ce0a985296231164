"""The text of the live line: progress records in, one line out. Pure; drawing it is :mod:`stoker.ui.live`."""

from __future__ import annotations

from collections import deque

from stoker.core.units import format_count
from stoker.records.events import Event, LoaderOpened, Notice, Progress, SampleQuarantined, SizesChosen, WorkerLost
from stoker.ui.figures import count_columns, shorten
from stoker.ui.report_text import SPLIT_COLOURS, Style, draw_bar, write_throughput
from stoker.ui.windows import RecordedWindow, Split, between

SPAN_S = 3.0
"""The line shows about so much of the past: short enough to follow, long enough not to flicker."""
_BAR = "#" * 12
"""Placeholder for the split's bar, of its width."""
_LOST_SHOWN = 5
_BOLD = 1
_DIM = 90

Part = tuple[str, int]
"""Text, and the ANSI style to paint it with (0 for none)."""


class LiveState:
    """State of the live line: the last records of each loader."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[Progress]] = {}
        self._sites: dict[int, str] = {}
        self._current: int | None = None
        self._ranks = ""

    def add(self, event: Event) -> None:
        """Processes one record."""
        if isinstance(event, LoaderOpened):
            self._sites.setdefault(event.loader, event.site.rsplit("/", 1)[-1])
        elif isinstance(event, SizesChosen):
            self._ranks = format_count(event.workers, "rank")
        elif isinstance(event, Progress):
            recent = self._recent.setdefault(event.loader, deque())
            recent.append(event)
            # The oldest record kept is the last one that is at least SPAN_S old.
            while len(recent) > 2 and recent[1].t_s <= event.t_s - SPAN_S:
                recent.popleft()
            self._current = event.loader

    def render(self, style: Style, *, bar: bool = True) -> str:
        """The line, at most ``style.width`` columns; empty while there is nothing to show."""
        if self._current is None:
            return ""
        recent = self._recent[self._current]
        # Two records at the same batch give no rate: the whole course so far is shown instead.
        window = between(recent[0] if len(recent) > 1 else None, recent[-1], until_now=True)
        window = window or between(None, recent[-1], until_now=True)
        if window is None:
            return ""
        site = style.clean(self._sites.get(self._current, "")) if len(self._recent) > 1 else ""
        return _fullest(window, recent[-1], self._ranks, site, style, bar=bar)


def _fullest(window: RecordedWindow, last: Progress, ranks: str, site: str, style: Style, *, bar: bool) -> str:
    """The form of the line that tells most in the width there is."""
    name, rate = _plain("stoker", _BOLD), _plain(write_throughput(window))
    shares = _shares(window.split)
    wait = _plain(f"input wait {_whole(window.split.input_wait_frac)} %")
    away = f", {last.away} away" if last.away else ""
    workers = _plain(format_count(last.workers, "worker") + away if last.workers else "in process")
    queue = _plain(f"queue {last.ready}/{last.capacity}" if last.capacity else "")
    place = _plain(site, _DIM)
    sizes = _plain(ranks)
    graph = [(_BAR, 0)] if bar else []
    forms = [
        [name, rate, graph, shares, sizes, workers, queue, place],
        [name, rate, graph, shares, sizes, workers, queue],
        [name, rate, shares, sizes, workers, queue],
        [name, rate, wait, workers, queue],
        [name, rate, wait, workers],
        [rate, wait],
    ]
    for form in forms:
        groups = [group for group in form if group]
        if sum(_columns(group) for group in groups) + 2 * (len(groups) - 1) <= style.width:
            return "  ".join(_paint(group, window.split, style) for group in groups)
    return shorten(rate[0][0], style.width)


def _plain(text: str, code: int = 0) -> list[Part]:
    return [(text, code)] if text else []


def _columns(group: list[Part]) -> int:
    return sum(count_columns(text) for text, _ in group) + len(group) - 1


def _paint(group: list[Part], split: Split, style: Style) -> str:
    if group == [(_BAR, 0)]:
        return draw_bar(split, len(_BAR), style)
    return " ".join(style.paint(text, code) if code else text for text, code in group)


def _shares(split: Split) -> list[Part]:
    """The four shares, each in the colour of its part of the bar."""
    names = zip(("wait", "copy", "compute", "other"), split.parts(), SPLIT_COLOURS, strict=True)
    return [*((f"{name} {_whole(share)}", code) for name, share, code in names), ("%", 0)]


def _whole(frac: float) -> str:
    return f"{100 * frac:.0f}"


def announce(event: Event, lost_before: int) -> str:
    """The line that an event deserves by itself, at once; empty for most.

    Args:
        event: any record.
        lost_before: workers lost before it; a storm of losses is left to the report.
    """
    if isinstance(event, Notice):
        return event.text
    if isinstance(event, SampleQuarantined):
        done = {"skip": "skipped", "replace": "replaced"}.get(event.action, event.action)
        name = f"index {event.index}" + (f" ({event.path})" if event.path else "")
        return f"sample {done}: {name} killed its worker twice"
    if isinstance(event, WorkerLost) and lost_before < _LOST_SHOWN:
        items = format_count(event.released, "item")
        more = "; further losses only in the report" if lost_before == _LOST_SHOWN - 1 else ""
        where = f" on {event.place}" if event.place else ""
        return f"worker {event.worker} (pid {event.pid}{where}) lost: {event.cause}; {items} issued again{more}"
    return ""
