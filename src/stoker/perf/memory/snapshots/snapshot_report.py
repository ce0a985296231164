"""Answers what held a device's memory in a snapshot of torch: by line, by what was unusable, under other settings."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from stoker.core.errors import ConfigError
from stoker.core.placement.offsets import place_buffers
from stoker.perf.memory.snapshots.snapshot import (
    BACKWARD,
    SnapshotBuffer,
    SnapshotHistory,
    devices_of,
    history_of,
    pieces_at,
    replay_snapshot,
    short_lines,
)
from stoker.perf.memory.snapshots.snapshot_file import CudaSnapshot
from stoker.records.memory import AllocatorChoice, MemoryShare, SnapshotMoment, SnapshotReport

_POINTS = 240
_SHOWN = 6
_OTHER = ("max_split_size", "roundup_power2_divisions", "garbage_collection_threshold")
_MOST_PLACED = 10_000
"""Buffers up to which a planned arena takes seconds."""


def snapshot_report(snapshot: CudaSnapshot, name: str) -> SnapshotReport:
    """The answer for the device that matters most; pure.

    Args:
        snapshot: as it was read.
        name: of its file.

    Raises:
        ConfigError: it holds no memory.
    """
    devices = devices_of(snapshot)
    if not devices:
        raise ConfigError(
            f"`{name}` must hold memory of a device, got no segments and no events; "
            "call torch.cuda.memory._record_memory_history() before the first allocation"
        )
    history = history_of(snapshot, devices[0])
    requested, ran_out = history.requested, history.ran_out
    at = int(np.argmax(requested)) if ran_out is None else ran_out
    asked = None if ran_out is None else history.events[ran_out]
    alive = history.alive(at)
    names = short_lines({each.line for each in history.buffers} | ({history.lines[at]} if asked else set()))
    lines = _lines(alive, names)
    shown = [share.name for share in lines[:_SHOWN]]
    last = next((each for each in reversed(alive) if each.birth == at), None)
    return SnapshotReport(
        name=name, device=history.device, others=devices[1:], events=len(history.events),
        asked_bytes=None if asked is None else asked.size, asked_line=names[history.lines[at]] if asked else "",
        free_bytes=None if asked is None else asked.device_free, at=at,
        line=names[last.line] if last is not None and at and asked is None else "", peak_bytes=int(requested[at]),
        reserved_bytes=int(history.reserved[at]), most_reserved_bytes=int(history.reserved.max()),
        parts=_parts(alive, pieces_at(snapshot, history, at), int(history.reserved[at])), lines=lines,
        expandable=history.expandable, choices=_choices(history), shown=shown,
        moments=_moments(history, names, shown), notes=_notes(history, devices, snapshot),
    )  # fmt: skip


def _lines(alive: Sequence[SnapshotBuffer], names: Mapping[str, str]) -> list[MemoryShare]:
    sums: dict[str, int] = {}
    for each in alive:
        sums[names[each.line]] = sums.get(names[each.line], 0) + each.bytes
    return [MemoryShare(*item) for item in sorted(sums.items(), key=lambda item: -item[1])]


def _parts(alive: Sequence[SnapshotBuffer], pieces: Mapping[int, int], reserved: int) -> list[MemoryShare]:
    """Tensors, what their blocks are larger, what is free around them, and what nothing is in."""
    starts = sorted(pieces)
    used: set[int] = set()
    for each in alive:
        first = bisect_right(starts, each.address) - 1
        last = bisect_right(starts, each.address + max(1, each.held) - 1) - 1
        used.update(starts[max(0, first) : last + 1])
    tensors = sum(each.bytes for each in alive)
    rounding = sum(each.held - each.bytes for each in alive)
    unused = sum(size for start, size in pieces.items() if start not in used)
    return [
        MemoryShare("tensors", tensors), MemoryShare("rounding", rounding),
        MemoryShare("free between tensors", max(0, reserved - tensors - rounding - unused)),
        MemoryShare("unused segments", unused),
    ]  # fmt: skip


def _choices(history: SnapshotHistory) -> list[AllocatorChoice]:
    """Most bytes that the recorded requests take of the device, as recorded and otherwise."""
    found = [AllocatorChoice("as recorded", int(history.reserved.max()))]
    if not history.events:
        return found
    for name, expandable in (("default settings, replayed", False), ("expandable segments, replayed", True)):
        replayed = replay_snapshot(history, expandable=expandable)
        if replayed is not None:
            found.append(AllocatorChoice(name, replayed.reserved))
    if len(history.buffers) <= _MOST_PLACED:
        placed = place_buffers([(each.bytes, each.birth, each.death) for each in history.buffers])
        found.append(AllocatorChoice("one planned arena", placed.size))
    return found


def _moments(history: SnapshotHistory, names: Mapping[str, str], shown: Sequence[str]) -> list[SnapshotMoment]:
    """The history by line, each moment the fullest of its part."""
    rows = {name: row for row, name in enumerate(shown)}
    change = np.zeros((len(shown) + 1, len(history.events) + 2), dtype=np.int64)
    for each in history.buffers:
        row = rows.get(names[each.line], len(shown))
        change[row, each.birth] += each.bytes
        change[row, each.death] -= each.bytes
    live = np.cumsum(change[:, :-1], axis=1)
    count = live.shape[1]
    edges = [count * part // min(_POINTS, count) for part in range(min(_POINTS, count) + 1)]
    found: list[SnapshotMoment] = []
    for start, stop in itertools.pairwise(edges):
        at = start + int(np.argmax(live[:, start:stop].sum(axis=0)))
        reserved = int(history.reserved[start:stop].max())
        found.append(SnapshotMoment(at / max(1, count - 1), [int(size) for size in live[:, at]], reserved))
    return found


def _notes(history: SnapshotHistory, devices: Sequence[int], snapshot: CudaSnapshot) -> list[str]:
    notes: list[str] = []
    if np.any(history.requested > history.reserved):
        notes.append("the recorded events contradict the segments: more was requested than there was")
    if not history.events:
        notes.append(
            "the snapshot holds no events, so its end is shown; torch.cuda.memory._record_memory_history() records them"
        )
    elif any(not each.line for each in history.buffers):
        notes.append(
            "memory without a line was allocated before the first recorded event, or its stack is not recorded"
        )
    if any(each.line == BACKWARD for each in history.buffers):
        notes.append("autograd's threads run no line of the program")
    if len(devices) > 1:
        notes.append(f"other devices with memory: {', '.join(str(device) for device in devices[1:])}")
    other = [name for name in _OTHER if _is_set(snapshot.allocator_settings.get(name))]
    if history.events and other:
        notes.append(f"replays leave out other settings of the allocator: {', '.join(other)}")
    return notes


def _is_set(value: object) -> bool:
    """Whether an allocator's setting differs from its default, as snapshots write these: -1, 0 or zeros by size."""
    if isinstance(value, dict):
        return any(cast("dict[object, object]", value).values())
    return value not in (None, -1, 0)
