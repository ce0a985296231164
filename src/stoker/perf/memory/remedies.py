"""What a program's memory becomes under a remedy: from a timeline to another one, and seconds that it adds to a step.

A remedy changes nothing of what is computed. Each is a function of the timeline; what it saves is read off the result,
by the same peak and the same replay as before it. Modules that are repeated are in ``choice/units``.
"""

from __future__ import annotations

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.memory.timeline import KeptTooLong
from stoker.perf.memory.updates import Updates, is_of_updates

_LAUNCH_S = 5e-6
"""Time of the host to start a kernel (assumed; measured 4-7 us on servers with A100 and H100)."""


def one_by_one(timeline: MemoryTimeline) -> tuple[MemoryTimeline, float]:
    """The timeline where the optimizer updates one parameter after another (``foreach=False``), and the added seconds.

    Of the temporaries that a call on all parameters makes, those of one parameter are alive at a time: the largest.
    """
    births = {each.birth: place for place, each in enumerate(timeline.buffers) if each.category == "temporaries"}
    dropped: set[int] = set()
    most = calls = 0
    ends = [*(call.at for call in timeline.calls[1:]), timeline.end]
    for call, stop in zip(timeline.calls, ends, strict=False):
        if call.phase == "optimizer" and call.name.startswith("_foreach"):
            made = [births[at] for at in range(call.at, stop) if at in births]
            made = [each for each in made if timeline.buffers[each].death < timeline.end]
            most, calls = max(most, len(made)), calls + 1
            dropped.update(sorted(made, key=lambda each: -timeline.buffers[each].bytes)[1:])
    lives = tuple(
        msgspec.structs.replace(each, bytes=0) if place in dropped else each
        for place, each in enumerate(timeline.buffers)
    )
    return msgspec.structs.replace(timeline, buffers=lives), max(0, most - 1) * calls * _LAUNCH_S


def deleted(timeline: MemoryTimeline, kept: KeptTooLong) -> MemoryTimeline:
    """The timeline where the program deletes a variable after the line that reads it last."""
    lives = list(timeline.buffers)
    for place in kept.buffers:
        lives[place] = msgspec.structs.replace(lives[place], death=min(lives[place].death, lives[place].last_use + 2))
    return msgspec.structs.replace(timeline, buffers=tuple(lives))


def sharded(
    timeline: MemoryTimeline, ranks: int, *, weights: bool, gathered_bytes: int = 0, cut: bool = True
) -> MemoryTimeline:
    """The timeline of one rank that keeps its share alone.

    Args:
        timeline: of a rank that keeps everything.
        ranks: that share.
        weights: whether parameters and gradients are shared as well (FSDP), or the optimizer's states alone (ZeRO-1).
        gathered_bytes: weights and gradients that are whole at a time, where these are shared.
        cut: whether ranks may update parts of a weight each (ZeRO-1).
    """
    updates = None if weights else Updates.of(timeline)

    def share(each: BufferLife) -> BufferLife:
        if is_of_updates(each) or (weights and each.category in ("parameters", "gradients")):
            # ZeRO-1 deals out whole weights, or cuts them anywhere.
            part = part_of_rows(each, ranks) if weights else -(-each.bytes // ranks)
            return msgspec.structs.replace(each, bytes=part)
        return each

    lives = tuple(map(share, timeline.buffers)) if updates is None else updates.of_fullest(ranks, cut=cut)
    changed = msgspec.structs.replace(timeline, buffers=lives)
    return with_copies(changed, gathered_bytes) if gathered_bytes else changed


def part_of_rows(each: BufferLife, ranks: int) -> int:
    """The bytes that the first rank keeps of a weight, or of a gradient or state of one.

    They are shared by rows: of 10 rows, the first of four ranks has 3. What has no rows is cut anywhere.
    """
    if each.rows:
        return -(-each.rows // ranks) * (each.bytes // each.rows)
    return -(-each.bytes // ranks)


def with_copies(timeline: MemoryTimeline, nbytes: int) -> MemoryTimeline:
    """The timeline with a buffer of the exchange that lives through all of it."""
    copy = BufferLife(nbytes, 0, timeline.end, -1, "temporaries", "forward", "(exchange)", "")
    held = tuple(msgspec.structs.replace(each, buffer=each.buffer + 1) for each in timeline.held)
    return msgspec.structs.replace(timeline, buffers=(copy, *timeline.buffers), held=held)
