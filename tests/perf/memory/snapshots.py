"""Snapshots as torch writes them: from real traces, and from the replayed allocator that serves any requests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.perf.memory.allocator import AllocatorReplay, rounded

TRACES = Path(__file__).parents[4] / "shared" / "data" / "memory"
_ACTIONS = {"a": "alloc", "f": "free_completed", "s": "segment_alloc", "r": "segment_free"}


def read_trace(name: str) -> dict[str, Any]:
    """A recorded CUDA step; skips the test where there is none."""
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not on this machine: allocation traces of real CUDA steps")
    return json.loads(gzip.decompress(path.read_bytes()))


def snapshot_of_trace(trace: dict[str, Any]) -> dict[str, Any]:
    """The snapshot that torch would have written at the end of a recorded step, without stacks."""
    alive = {address: (requested, block) for address, requested, block in trace["alive"]}
    events: list[dict[str, Any]] = []
    for action, address, size in trace["events"]:
        if action == "a":
            alive[address] = (size, None)
        elif action == "f":
            alive.pop(address)
        events.append(event_of(_ACTIONS[action], address, size))
    blocks = [(address, block or rounded(size), size) for address, (size, block) in alive.items()]
    segments = [(address, size) for address, size, _, _ in trace["segments_at_end"]]
    return {"segments": segments_of(segments, blocks), "device_traces": [events]}


def event_of(action: str, address: int, size: int, frames: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames or [], "time_us": 0}


def segments_of(
    segments: list[tuple[int, int]], blocks: list[tuple[int, int, int]], *, expandable: bool = False
) -> list[dict[str, Any]]:
    """Segments with their blocks: address, bytes and requested bytes."""
    return [
        {
            "device": 0, "address": start, "total_size": length, "stream": 0, "is_expandable": expandable,
            "segment_type": "small" if length <= 2 << 20 else "large",
            "blocks": [
                {"address": address, "size": size, "requested_size": requested, "state": "active_allocated",
                 "frames": []}
                for address, size, requested in sorted(blocks) if start <= address < start + length
            ],
        }
        for start, length in sorted(segments)
    ]  # fmt: skip


class Recorder:
    """An allocator that records what it does, as torch's does."""

    def __init__(self, *, expandable: bool) -> None:
        self._expandable = expandable
        self._end = 1 << 40
        self._requested: dict[int, int] = {}
        self.replay = AllocatorReplay(expandable=expandable, address_of=None if expandable else self._give)
        self.events: list[dict[str, Any]] = []
        self.lives: list[tuple[int, int]] = []
        """Requested bytes and reserved bytes after each event."""

    def allocate(self, size: int, line: int = 0) -> int:
        before = dict(self.replay.segments)
        address = self.replay.allocate(size)
        for start, length in self.replay.segments.items():
            had = before.get(start, 0)
            if self._expandable and length > had:
                self._record("segment_map", start + had, length - had)
        self._requested[address] = size
        self._record("alloc", address, size, [
            {"filename": "/opt/lib/python3.12/site-packages/torch/nn/linear.py", "line": 125, "name": "forward"},
            {"filename": "/home/x/train.py", "line": line, "name": "main"},
        ])  # fmt: skip
        return address

    def free(self, address: int) -> None:
        size = self._requested.pop(address)
        self.replay.free(address)
        self._requested[-1] = size  # a tensor's memory is still taken when its free is only asked for
        self._record("free_requested", address, size)
        del self._requested[-1]
        self._record("free_completed", address, size)

    def empty_cache(self) -> None:
        before = dict(self.replay.segments)
        self.replay.release_all()
        reserved = sum(before.values())
        for start, length in before.items():
            if start not in self.replay.segments:
                reserved -= length
                self._record("segment_free", start, length, reserved=reserved)

    def snapshot(self, skipped: int = 0) -> dict[str, Any]:
        """The snapshot, with the first events lost."""
        blocks = [(address, size, self._requested[address]) for address, size in self.replay.blocks()]
        segments = segments_of(list(self.replay.segments.items()), blocks, expandable=self._expandable)
        return {"segments": segments, "device_traces": [self.events[skipped:]]}

    def _give(self, size: int) -> int:
        address, self._end = self._end, self._end + size
        self._record("segment_alloc", address, size, reserved=self.replay.reserved + size)
        return address

    def _record(
        self, action: str, address: int, size: int, frames: list[dict[str, Any]] | None = None, *,
        reserved: int | None = None,
    ) -> None:  # fmt: skip
        self.events.append(event_of(action, address, size, frames))
        self.lives.append((sum(self._requested.values()), self.replay.reserved if reserved is None else reserved))
