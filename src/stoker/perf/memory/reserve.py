"""What the allocator reserves for a program: its timeline, replayed from the program's start through repeated steps."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

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


class _Run:
    """Requests and frees of a timeline, in the order of its events."""

    def __init__(self, timeline: MemoryTimeline, allocator: AllocatorReplay, workspace_bytes: int) -> None:
        self.timeline, self.allocator = timeline, allocator
        self._workspace = workspace_bytes
        self._without: set[Phase] = {"forward", "backward"}
        self._births: dict[int, list[int]] = {}
        self._deaths: dict[int, list[int]] = {}
        for place, buffer in enumerate(timeline.buffers):
            self._births.setdefault(buffer.birth, []).append(place)
            self._deaths.setdefault(buffer.death, []).append(place)
        self._addresses: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._requested = self.most = 0
        carried = [place for place, each in enumerate(timeline.buffers) if each.birth < timeline.begin <= each.death]
        self._carried_in = [place for place in carried if timeline.buffers[place].death < timeline.end]
        self._carried_out = [
            place for place, each in enumerate(timeline.buffers)
            if each.birth >= timeline.begin and each.death >= timeline.end
        ]  # fmt: skip

    def play(self, start: int, stop: int) -> None:
        """Requests and frees of these events."""
        for at in range(start, stop):
            for place in self._deaths.get(at, ()):
                self._free(place)
            for place in self._births.get(at, ()):
                buffer = self.timeline.buffers[place]
                if buffer.phase == "backward" or buffer.category in _OF_PASSES:
                    self._multiply(buffer.phase)
                self._allocate(place, buffer.bytes)

    def repeat(self) -> None:
        """One more step: what it frees of the step before is what that one left."""
        left: dict[tuple[str, int], deque[int]] = {}
        for place in self._carried_out:
            left.setdefault(self._kind(place), deque()).append(place)
        moved: dict[int, tuple[int, int]] = {}
        for place in self._carried_in:
            waiting = left.get(self._kind(place))
            if waiting:
                other = waiting.popleft()
                moved[place] = self._addresses.pop(other), self._sizes.pop(other)
        for waiting in left.values():
            for place in waiting:
                self._free(place)
        self._addresses |= {place: address for place, (address, _) in moved.items()}
        self._sizes |= {place: size for place, (_, size) in moved.items()}
        self.play(self.timeline.begin, self.timeline.end)

    def _kind(self, place: int) -> tuple[str, int]:
        buffer = self.timeline.buffers[place]
        return buffer.category, buffer.bytes

    def _multiply(self, phase: Phase) -> None:
        """A thread's first product takes its workspace: the program's in a forward pass, autograd's in a backward."""
        if self._workspace and phase in self._without:
            self._without.discard(phase)
            self.allocator.allocate(self._workspace)
            self._requested += self._workspace

    def _allocate(self, place: int, size: int) -> None:
        if not size:
            return
        self._addresses[place] = self.allocator.allocate(size)
        self._sizes[place] = size
        self._requested += size
        self.most = max(self.most, self._requested)

    def _free(self, place: int) -> None:
        address = self._addresses.pop(place, None)
        if address is not None:
            self.allocator.free(address)
            self._requested -= self._sizes.pop(place)
