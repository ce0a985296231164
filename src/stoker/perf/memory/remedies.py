"""What a program's memory becomes under a remedy: from a timeline to another one, and seconds that it adds to a step.

A remedy changes nothing of what is computed. Each is a function of the timeline; what it saves is read off the result,
by the same peak and the same replay as before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec.structs

from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline
from stoker.perf.features.records import block_of
from stoker.perf.memory.timeline import KeptTooLong

_LAUNCH_S = 5e-6
"""Time of the host to start a kernel (assumed; measured 4-7 us on servers with A100 and H100)."""


@dataclass(frozen=True, slots=True)
class BlockSpan:
    """One forward pass of a block and its backward pass, in events.

    Attributes:
        path: of the block.
        forward: where the forward pass begins, and where the next call after it does.
        backward: the same of its backward pass.
        seconds: predicted for the forward pass.
        inner: places of buffers that the forward pass makes and only the block itself needs later.
        outer: places of buffers that it makes and others need.
    """

    path: str
    forward: tuple[int, int]
    backward: tuple[int, int]
    seconds: float
    inner: tuple[int, ...]
    outer: tuple[int, ...]


def spans_of(timeline: MemoryTimeline) -> tuple[BlockSpan, ...]:
    """The blocks whose forward pass can be repeated, in the order of their forward passes.

    A block counts if its calls alternate between forward and backward pass; one whose weights are shared with another
    place of the model, or that is called twice before its backward pass, is left out.
    """
    groups: dict[str, list[list[tuple[int, CallInTime]]]] = {}
    for place, call in enumerate(timeline.calls):
        path = block_of(call.module)
        if call.phase == "optimizer" or not path:
            continue
        passes = groups.setdefault(path, [])
        if passes and passes[-1][-1][1].phase == call.phase:
            passes[-1].append((place, call))
        else:
            passes.append([(place, call)])
    made: dict[str, list[int]] = {}
    for place, buffer in enumerate(timeline.buffers):
        if buffer.birth >= timeline.begin and buffer.phase == "forward":
            made.setdefault(block_of(buffer.module), []).append(place)
    found: list[BlockSpan] = []
    for path, passes in groups.items():
        ahead, back = passes[::2], passes[1::2]
        alternates = len(ahead) == len(back) and all(each[0][1].phase == "forward" for each in ahead)
        if alternates and all(_is_one_run(timeline.calls, each) for each in ahead):
            pairs = zip(ahead, back, strict=True)
            found += [_span(timeline, path, forward, backward, made.get(path, ())) for forward, backward in pairs]
    return tuple(sorted(found, key=lambda span: span.forward))


def _is_one_run(calls: Sequence[CallInTime], found: Sequence[tuple[int, CallInTime]]) -> bool:
    """Whether nothing of another block runs in between."""
    path = block_of(found[0][1].module)
    return all(block_of(call.module) in ("", path) for call in calls[found[0][0] : found[-1][0] + 1])


def _span(
    timeline: MemoryTimeline, path: str, forward: Sequence[tuple[int, CallInTime]],
    backward: Sequence[tuple[int, CallInTime]], made: Iterable[int],
) -> BlockSpan:  # fmt: skip
    start, stop = forward[0][1].at, _end_of(timeline, forward[-1][0])
    inside = [place for place in made if start <= timeline.buffers[place].birth < stop]
    outer = [place for place in inside if timeline.buffers[place].last_outside >= stop]
    return BlockSpan(
        path, (start, stop), (backward[0][1].at, _end_of(timeline, backward[-1][0])),
        sum(call.seconds for _, call in forward), tuple(place for place in inside if place not in set(outer)),
        tuple(outer),
    )  # fmt: skip


def _end_of(timeline: MemoryTimeline, place: int) -> int:
    """Events before the next call."""
    return timeline.calls[place + 1].at if place + 1 < len(timeline.calls) else timeline.end


def kept_bytes(timeline: MemoryTimeline, span: BlockSpan) -> int:
    """Bytes that a block keeps for its own backward pass, and that its repetition spares until then."""
    start = span.backward[0]
    places = [*span.inner, *(place for place in span.outer if timeline.buffers[place].last_outside < start)]
    return sum(timeline.buffers[place].bytes for place in places if timeline.buffers[place].death > start)


def recomputed(timeline: MemoryTimeline, spans: Collection[BlockSpan]) -> tuple[MemoryTimeline, float]:
    """The timeline where some blocks keep their input alone and repeat their forward pass, and the added seconds.

    The events of a block's forward pass are inserted before its backward pass. Tensors that it needs only later end
    with the first forward pass and are made again (arXiv 1604.06174, section 4).
    """
    order = sorted(spans, key=lambda span: span.backward[0])
    starts = [span.backward[0] for span in order]
    shifts = [0]
    for span in order:
        shifts.append(shifts[-1] + span.forward[1] - span.forward[0])

    def moved(at: int) -> int:
        return at + shifts[bisect_right(starts, at)]

    ends = [call.at for call in timeline.calls]

    def after(at: int) -> int:
        """Where the call after one that begins at ``at`` begins."""
        place = bisect_right(ends, at)
        return ends[place] if place < len(ends) else timeline.end

    lives = [
        msgspec.structs.replace(each, birth=moved(each.birth), death=moved(each.death)) for each in timeline.buffers
    ]
    again: list[BufferLife] = []
    for number, span in enumerate(order):
        begins = span.backward[0] + shifts[number] - span.forward[0]
        for place in span.inner:
            buffer = timeline.buffers[place]
            death = moved(buffer.death) if buffer.death > span.forward[1] else begins + buffer.death
            again.append(msgspec.structs.replace(buffer, birth=begins + buffer.birth, death=death))
            lives[place] = msgspec.structs.replace(lives[place], death=moved(min(buffer.death, span.forward[1])))
        for place in span.outer:
            buffer = timeline.buffers[place]
            needed = after(buffer.last_outside)
            if needed <= span.backward[0] < buffer.death:
                again.append(msgspec.structs.replace(buffer, birth=begins + buffer.birth, death=moved(buffer.death)))
                lives[place] = msgspec.structs.replace(lives[place], death=moved(needed))
    changed = msgspec.structs.replace(
        timeline, begin=moved(timeline.begin), end=moved(timeline.end), buffers=(*lives, *again),
        calls=tuple(msgspec.structs.replace(call, at=moved(call.at)) for call in timeline.calls),
    )  # fmt: skip
    return changed, sum(span.seconds for span in spans)


def one_by_one(timeline: MemoryTimeline) -> tuple[MemoryTimeline, float]:
    """The timeline where the optimizer updates one parameter after another (``foreach=False``), and the added seconds.

    Of the temporaries that a call on all parameters makes, those of one parameter are alive at a time: the largest.
    """
    births = {each.birth: place for place, each in enumerate(timeline.buffers) if each.category == "temporaries"}
    dropped: set[int] = set()
    most = calls = 0
    for place, call in enumerate(timeline.calls):
        if call.phase == "optimizer" and call.name.startswith("_foreach"):
            stop = _end_of(timeline, place)
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


def sharded(timeline: MemoryTimeline, ranks: int, *, weights: bool, gathered_bytes: int = 0) -> MemoryTimeline:
    """The timeline of one rank that keeps its share alone.

    Args:
        timeline: of a rank that keeps everything.
        ranks: that share.
        weights: whether parameters and gradients are shared as well (FSDP), or the optimizer's states alone (ZeRO-1).
        gathered_bytes: weights and gradients that are whole at a time, where these are shared.
    """

    def share(each: BufferLife) -> BufferLife:
        is_state = each.category == "optimizer" or (each.category == "temporaries" and each.phase == "optimizer")
        if is_state or (weights and each.category in ("parameters", "gradients")):
            return msgspec.structs.replace(each, bytes=-(-each.bytes // ranks))
        return each

    lives = tuple(map(share, timeline.buffers))
    changed = msgspec.structs.replace(timeline, buffers=lives)
    return with_copies(changed, gathered_bytes) if gathered_bytes else changed


def with_copies(timeline: MemoryTimeline, nbytes: int) -> MemoryTimeline:
    """The timeline with a buffer of the exchange that lives through all of it."""
    copy = BufferLife(nbytes, 0, timeline.end, -1, -1, "temporaries", "forward", "(exchange)", "")
    held = tuple(msgspec.structs.replace(each, buffer=each.buffer + 1) for each in timeline.held)
    return msgspec.structs.replace(timeline, buffers=(copy, *timeline.buffers), held=held)
