"""What kernels take while they run, as buffers of a timeline: for GPUs where these kernels are the ones that run."""

from __future__ import annotations

from bisect import bisect_right

import msgspec.structs

from stoker.perf.catalogue import Gpu
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline

_LARGE_WORKSPACE_BYTES = 32 << 20
_WITH_LARGE = ("hopper", "blackwell")
"""GPUs for which cuBLAS takes more for its products (aten/src/ATen/cuda/CUDABlas.cpp)."""


def on_gpu(timeline: MemoryTimeline, card: Gpu) -> MemoryTimeline:
    """The timeline with what libraries and kernels take on a GPU.

    Kernels' memory is known where the GPU has tensor cores for fp32 (from Ampere on); others take other kernels. Each
    buffer is allocated after the outputs of its call but for those it is held for, and freed before anything else
    happens.
    """
    if card.generation in _WITH_LARGE:
        timeline = msgspec.structs.replace(timeline, workspace_bytes=_LARGE_WORKSPACE_BYTES)
    if "tf32" not in card.rates or not timeline.scratch:
        return timeline
    taken = [each.at - each.num_late_outputs for each in timeline.scratch]
    ended = [each.at for each in timeline.scratch]

    def moved(at: int) -> int:
        """An event, or what is before it: kernels that ran until then come first."""
        return at + bisect_right(taken, at) + bisect_right(ended, at) if at >= 0 else at

    lives = [
        msgspec.structs.replace(
            each, birth=moved(each.birth), death=moved(each.death), last_use=moved(each.last_use),
        )
        for each in timeline.buffers
    ]  # fmt: skip
    scratch = [
        BufferLife(
            each.bytes, at, at + each.num_late_outputs + 1, at, "temporaries", each.phase, each.module, each.line
        )
        for number, each in enumerate(timeline.scratch)
        for at in (each.at - each.num_late_outputs + 2 * number,)
    ]
    calls = (msgspec.structs.replace(call, at=moved(call.at)) for call in timeline.calls)
    every = [*lives, *scratch]
    order = sorted(range(len(every)), key=lambda place: every[place].birth)
    places = {place: number for number, place in enumerate(order)}
    held = (msgspec.structs.replace(each, buffer=places[each.buffer]) for each in timeline.held)
    return msgspec.structs.replace(
        timeline, begin=moved(timeline.begin), end=timeline.end + 2 * len(scratch),
        buffers=tuple(every[place] for place in order), calls=tuple(calls), held=tuple(held), scratch=(),
    )  # fmt: skip


def is_workspace(one: BufferLife) -> bool:
    """Whether :func:`on_gpu` added it: it is in use, and no call of the trace is known to use it."""
    return one.last_use >= 0 and not one.uses
