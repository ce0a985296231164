"""The cuts of a run: which record counts, its figures, and the words that every view of a cut shares."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.records.events import CutChosen, Event, GraphNode, GraphValue

PLACES = ("moved", "stateless", "stateful")
"""Where a call can be, in the order of the legend; data never flow from a later one to an earlier one."""
PLACE_NAMES = {
    "moved": "moved to data workers",
    "stateless": "stateless, but stays",
    "stateful": "stateful",
}
MAX_REASON = 300
"""Reasons are sentences; a longer one is cut where it is shown."""


class CutSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A cut in figures."""

    variant: int
    variants: int
    """Kinds of steps that were recorded of this loader."""
    outcome: str
    reason: str
    moved: int
    """Calls that data workers make."""
    stateless: int
    """Calls that could be moved, those included."""
    calls: int
    step_s: float
    saved_s: float
    worker_s: float
    bytes_before: int
    bytes_after: int


def latest_cuts(events: Iterable[Event], loader: int | None = None) -> list[CutChosen]:
    """The last record of each variant, by loader and variant."""
    last: dict[tuple[int, int], CutChosen] = {}
    for event in events:
        if isinstance(event, CutChosen) and loader in (None, event.loader):
            last[event.loader, event.variant] = event
    return [last[key] for key in sorted(last)]


def headline_cut(cuts: list[CutChosen]) -> CutChosen | None:
    """The cut to show first: the one in force that saves most, else one that was tried, else that of the first variant.

    A loader's last record is often that of its last, short batch, which is a separate variant.
    """
    moved = [cut for cut in cuts if cut.outcome == "moved"]
    if moved:
        return max(moved, key=lambda cut: cut.saved_s)
    return next((cut for cut in cuts if cut.outcome == "reverted"), cuts[0] if cuts else None)


def summarise_cut(cuts: list[CutChosen]) -> CutSummary | None:
    """The figures of one loader's cuts; None where there is none."""
    cut = headline_cut(cuts)
    if cut is None:
        return None
    moved = len(in_place(cut, "moved"))
    return CutSummary(
        variant=cut.variant,
        variants=len(cuts),
        outcome=cut.outcome,
        reason=cut.reason,
        moved=moved,
        stateless=moved + len(in_place(cut, "stateless")),
        calls=len(cut.nodes),
        step_s=cut.step_s,
        saved_s=cut.saved_s,
        worker_s=cut.worker_s,
        bytes_before=cut.bytes_before,
        bytes_after=cut.bytes_after,
    )


def write_cut(cut: CutSummary) -> str:
    """A cut in one line, without its reason unless nothing is moved."""
    moved = _write_moved(cut.moved, cut.stateless)
    if cut.outcome == "moved":
        return f"{moved} moved to data workers, {format_seconds(cut.saved_s)} a step; {write_sizes(cut)}"
    return f"{_write_outcome(moved, cut.moved, cut.outcome)}: {cut.reason}"


def _write_moved(moved: int, stateless: int) -> str:
    return f"{moved or 'none'} of {format_count(stateless, 'stateless call')}" if stateless else "nothing"


def _write_outcome(calls: str, moved: int, outcome: str) -> str:
    """The outcome of a cut that is not in force; its calls may be shown where they were tried or where they are."""
    if outcome != "reverted":
        return f"{calls} moved"
    return f"{calls} moved and taken back" if moved else "a cut was tried and taken back"


def write_sizes(cut: CutSummary | CutChosen) -> str:
    """Bytes of a batch before and after, where they differ."""
    before, after = format_bytes(cut.bytes_before), format_bytes(cut.bytes_after)
    return f"{before} a batch" if before == after else f"{before} → {after} a batch"


def in_place(cut: CutChosen, place: str) -> list[GraphNode]:
    """The calls at a place."""
    return [node for node in cut.nodes if node.place == place]


def seconds_of(nodes: Iterable[GraphNode]) -> float:
    """Seconds a step of some calls."""
    return sum(node.seconds for node in nodes)


def write_time(nodes: Iterable[GraphNode]) -> str:
    """Time of some calls in a step; empty if none was timed."""
    seconds = seconds_of(nodes)
    return format_seconds(seconds) if seconds > 0 else ""


def sent_values(cut: CutChosen) -> list[GraphValue]:
    """Tensors that data workers send, in the order of the values."""
    return [value for value in cut.values if value.crosses]


def write_type(value: GraphValue) -> str:
    """Shape and type of a tensor: ``4096x26 int64``, ``float32`` for a scalar."""
    shape = "x".join(map(str, value.shape))
    return f"{shape} {value.dtype}" if shape else f"{value.dtype} scalar"


def short_name(function: str) -> str:
    """The last part of a function's path, which is what the program calls it; an accessor keeps its owner."""
    parts = function.split(".")
    return ".".join(parts[-2:]) if parts[-1].startswith("__") and len(parts) > 1 else parts[-1]


def write_title(cut: CutChosen, site: str) -> str:
    """Whose cut it is."""
    place = f" ({site})" if site else ""
    return f"Cut of loader {cut.loader}{place}, variant {cut.variant}"


def write_gain(cut: CutChosen) -> str:
    """The effect of the cut on a step, in one line."""
    moved = len(in_place(cut, "moved"))
    calls = _write_moved(moved, moved + len(in_place(cut, "stateless")))
    step = f"a step of {format_seconds(cut.step_s)}"
    if cut.outcome == "moved":
        gain = f"saves {format_seconds(cut.saved_s)} of {step}, takes {format_seconds(cut.worker_s)} of a data worker"
        return f"{calls} moved: {gain}; {write_sizes(cut)}"
    return f"{_write_outcome(calls, moved, cut.outcome)}; {step}, {format_bytes(cut.bytes_before)} a batch"
