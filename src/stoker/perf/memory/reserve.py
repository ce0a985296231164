"""What the allocator reserves for a program: its timeline, replayed from the program's start through repeated steps."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import Phase
from stoker.perf.memory.allocator import AllocatorReplay, DeviceFullError

CONTEXT_BYTES = 0.75e9
"""Memory of a process before it allocates a tensor: CUDA's context and kernels, buffers of NCCL, workspaces of cuBLAS.
The context takes 0.3 GB since CUDA 11.7 loads kernels when they are needed, more than 1 GB before (pytorch/pytorch
issue 107667), 1.7 GB on an RTX 3090 (issue 55277); the rest is assumed."""
_OF_PASSES = ("activations", "temporaries")
"""Memory that a pass makes; what else is made in one is parameters, inputs and states."""
_STEPS = 3
"""Steps after which the reserve of steps that are all alike grew no more in the traces that were replayed."""
_KEPT = 8
"""Replays that are kept: a report, its remedies and its plan ask for the same ones (10 of 15 of a model of 7B)."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """The allocator's memory through a program and its repeated steps.

    Attributes:
        requested: most bytes of tensors and workspaces that are alive at once, in the repeated steps.
        reserved: most bytes that the allocator holds.
        first: of these, most before the traced step.
        full: requested bytes that did not fit the limit; 0 if all did.
    """

    requested: int
    reserved: int
    first: int
    full: int = 0

    @property
    def unusable(self) -> int:
        """Reserved bytes beyond those requested at the peak."""
        return self.reserved - self.requested


@lru_cache(maxsize=_KEPT)
def replay(
    timeline: MemoryTimeline, *, expandable: bool = False, limit: float = math.inf, workspace_bytes: int = 0
) -> Reserve:
    """What the allocator reserves, if the traced step repeats.

    Args:
        timeline: of the program.
        expandable: whether ``expandable_segments:True`` is set.
        limit: bytes that the allocator may reserve; without one it never frees what it reserved.
        workspace_bytes: of cuBLAS, for each of two threads.
    """
    run = _Run(timeline, AllocatorReplay(expandable=expandable, limit=limit), workspace_bytes)
    try:
        run.play(0, timeline.begin)
        first = run.allocator.peak_reserved
        run.play(timeline.begin, timeline.end)
        for _ in range(_STEPS - 1):
            run.repeat()
    except DeviceFullError as error:
        return Reserve(run.most, run.allocator.peak_reserved, run.allocator.peak_reserved, error.size)
    return Reserve(run.most, run.allocator.peak_reserved, first)


@contextmanager
def replays_forgotten() -> Generator[None]:
    """Keeps no replay behind the block, nor its timeline: a process that has planned may run for days."""
    try:
        yield
    finally:
        replay.cache_clear()


class _Run:
    """Requests and frees of a timeline, in the order of its events."""

    def __init__(self, timeline: MemoryTimeline, allocator: AllocatorReplay, workspace_bytes: int) -> None:
        self.timeline, self.allocator = timeline, allocator
        self._workspace = workspace_bytes
        self._without: set[Phase] = {"forward", "backward"} if workspace_bytes else set()
        buffers = timeline.buffers
        # A request is known by the buffer's place, a free by its complement; at one event, frees come first.
        order = [(2 * each.death, ~place) for place, each in enumerate(buffers)]
        order += [(2 * each.birth + 1, place) for place, each in enumerate(buffers)]
        self._order = sorted(order, key=itemgetter(0))
        self._addresses: dict[int, int] = {}
        self._requested = self.most = 0
        begin, end = timeline.begin, timeline.end
        self._carried_in = [
            place for place, each in enumerate(buffers) if each.birth < begin <= each.death and each.death < end
        ]  # fmt: skip
        self._carried_out = [
            place for place, each in enumerate(buffers) if each.birth >= begin and each.death >= end
        ]  # fmt: skip

    def play(self, start: int, stop: int) -> None:
        """Requests and frees of these events."""
        buffers, addresses, allocate = self.timeline.buffers, self._addresses, self.allocator.allocate
        first, last = (bisect_left(self._order, (2 * at,)) for at in (start, stop))
        for _, place in self._order[first:last]:
            if place < 0:
                self._free(~place)
                continue
            buffer = buffers[place]
            if self._without and (buffer.phase == "backward" or buffer.category in _OF_PASSES):
                self._multiply(buffer.phase)
            if size := buffer.bytes:
                addresses[place] = allocate(size)
                self._requested += size
                if self._requested > self.most:
                    self.most = self._requested

    def repeat(self) -> None:
        """One more step: what it frees of the step before is what that one left."""
        left: dict[tuple[str, int], deque[int]] = {}
        for place in self._carried_out:
            left.setdefault(self._kind(place), deque()).append(place)
        moved: dict[int, int] = {}
        for place in self._carried_in:
            waiting = left.get(self._kind(place))
            if waiting:
                moved[place] = self._addresses.pop(waiting.popleft())
        for waiting in left.values():
            for place in waiting:
                self._free(place)
        self._addresses |= moved
        self.play(self.timeline.begin, self.timeline.end)

    def _kind(self, place: int) -> tuple[str, int]:
        buffer = self.timeline.buffers[place]
        return buffer.category, buffer.bytes

    def _multiply(self, phase: Phase) -> None:
        """A thread's first product takes its workspace: the program's in a forward pass, autograd's in a backward."""
        if phase in self._without:
            self._without.discard(phase)
            self.allocator.allocate(self._workspace)
            self._requested += self._workspace

    def _free(self, place: int) -> None:
        address = self._addresses.pop(place, None)
        if address is not None:
            self.allocator.free(address)
            self._requested -= self.timeline.buffers[place].bytes
