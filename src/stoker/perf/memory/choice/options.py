"""What lowers a peak for the whole program, besides units that are repeated: what may be done, and what it gives.

Each option is a function of the timeline, as remedies are. Whether it may be done is read off the same timeline: a
gradient that is applied as soon as it is there must not be asked for by anyone, and must not be added to.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from dataclasses import dataclass

import msgspec.structs
import numpy as np

from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory.choice.offloading import HostLink
from stoker.perf.memory.kernel_memory import is_workspace
from stoker.perf.memory.remedies import one_by_one
from stoker.perf.strategy import UPDATE_S
from stoker.records.fitting import LEAST_AWAY_BYTES, TracedModel

BY_PARAMETER = frozenset({
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip
"""Optimizers of torch that update each parameter by its own gradient and state alone."""
BY_HAND = "the program updates its weights itself, without an optimizer"
_ZEROING = ("zero_", "_foreach_zero_")


@dataclass(frozen=True, slots=True)
class Options:
    """What of it is done.

    Attributes:
        one_by_one: the optimizer updates one parameter after another.
        used_up: gradients are applied inside the backward pass.
        states_away: states of the optimizer lie in host memory between updates.
    """

    one_by_one: bool = False
    used_up: bool = False
    states_away: bool = False


def has_foreach(timeline: MemoryTimeline) -> bool:
    """Whether an optimizer updates all parameters with one call."""
    return any(call.phase == "optimizer" and call.name.startswith("_foreach") for call in timeline.calls)


def why_not_used_up(features: StepFeatures, timeline: MemoryTimeline, model: TracedModel) -> str:
    """Why gradients must stay until the optimizer's step, as a part of a sentence; empty if they need not."""
    if model.passes_by_hand:
        return BY_HAND
    if model.gradients_read:
        return model.gradients_read
    if len(model.optimizers) != 1:
        return "several optimizers step" if model.optimizers else "no optimizer was seen"
    if model.optimizers[0] not in BY_PARAMETER:
        return f"{model.optimizers[0]} may look at several parameters at once"
    backward = [phase for phase, _ in itertools.groupby(timeline.calls, lambda call: call.phase)].count("backward")
    if features.micro_batches > 1 or backward > 1:
        return "several backward passes add to them"
    for buffer in timeline.buffers:
        if buffer.category != "gradients":
            continue
        for place in buffer.uses:
            call = timeline.calls[place]
            if call.phase == "forward" and call.name not in _ZEROING:
                return f"`{call.name}` reads them before the optimizer's step"
    return ""


def why_states_stay(timeline: MemoryTimeline, model: TracedModel) -> str:
    """Why states of the optimizer must stay on the device, as a part of a sentence; empty if they need not."""
    if model.passes_by_hand:
        return BY_HAND
    if not model.optimizers:
        return "no optimizer was seen"
    for name in model.optimizers:
        if name not in BY_PARAMETER:
            return f"{name} may look at several parameters at once"
    if not any(one.category == "optimizer" and one.bytes >= LEAST_AWAY_BYTES for one in timeline.buffers):
        return "the optimizer has none that are worth it"
    return ""


def with_options(
    timeline: MemoryTimeline, options: Options, link: HostLink | None = None
) -> tuple[MemoryTimeline, float]:
    """The timeline with some options, and the added seconds; where states are away, by a link to host memory."""
    added = 0.0
    if options.one_by_one:
        timeline, added = one_by_one(timeline)
    if options.used_up:
        timeline, seconds = used_up(timeline, states_away=options.states_away)
        added += seconds
    if options.states_away:
        assert link is not None
        timeline, seconds = states_sent_away(timeline, link, used_up=options.used_up)
        added += seconds
    return timeline, added


def states_sent_away(
    timeline: MemoryTimeline, link: HostLink, *, used_up: bool = False
) -> tuple[MemoryTimeline, float]:
    """The timeline where states of the optimizer lie in host memory but for updates, and the added seconds.

    Parameters are updated one after another. In the optimizer's step, states of the largest one are alive with what its
    update allocates, and states of the next one, which come meanwhile.

    Args:
        timeline: of the step; with gradients that are used up already, if they are.
        link: to host memory; no copy is taken to be hidden.
        used_up: whether updates are made inside the backward pass, where the timeline has states of one parameter at a
            time already.
    """
    weights = _weights(timeline)
    share = max(weights, default=0) / max(1, sum(weights))
    states, update, count = _state_bytes(timeline), _update_bytes(timeline), 0
    lives = list(timeline.buffers)
    for place, one in enumerate(lives):
        if _leaves(one) or _is_update(timeline, one):
            lives[place] = msgspec.structs.replace(one, bytes=0)
        elif one.category == "gradients" and one.birth >= timeline.begin:
            count += 1
    first = next((call.at for call in timeline.calls if call.phase == "optimizer"), timeline.end)
    if not used_up and first < timeline.end:
        held = int(share * (2 * states + update))
        lives.append(BufferLife(held, first, timeline.end, -1, "temporaries", "optimizer", "", ""))
    changed = msgspec.structs.replace(timeline, buffers=tuple(lives))
    return changed, 2 * states / link.bytes_per_s + count * UPDATE_S


def _leaves(one: BufferLife) -> bool:
    return one.category == "optimizer" and one.bytes >= LEAST_AWAY_BYTES


def _is_update(timeline: MemoryTimeline, one: BufferLife) -> bool:
    return one.category == "temporaries" and one.phase == "optimizer" and one.birth >= timeline.begin


def _weights(timeline: MemoryTimeline) -> list[int]:
    """Bytes of each parameter."""
    return [one.bytes for one in timeline.buffers if one.category == "parameters"]


def _state_bytes(timeline: MemoryTimeline) -> int:
    """Bytes of states that can lie in host memory."""
    return sum(one.bytes for one in timeline.buffers if _leaves(one) and one.birth < timeline.end <= one.death)


def used_up(timeline: MemoryTimeline, *, states_away: bool = False) -> tuple[MemoryTimeline, float]:
    """The timeline where each gradient dies once it is applied, and the added seconds.

    A gradient is applied when the part of the backward pass that made it is over, and what only that part read is gone.
    Then an update allocates what it needs, for one parameter after another; later steps of the optimizer find nothing
    to do.

    Args:
        timeline: of the step.
        states_away: whether states of a parameter are on the device for its update alone.
    """
    weights = _weights(timeline)
    # What one call on all parameters allocates is as much for each as it is large.
    beside = sum(weights) if has_foreach(timeline) else max(weights, default=0)
    share = _update_bytes(timeline) / beside if beside else 0.0
    if states_away:
        share += _state_bytes(timeline) / max(1, sum(weights))
    others = sorted(one.birth for one in timeline.buffers if one.category != "gradients" and not is_workspace(one))

    def over(at: int) -> int:
        """The end of the part of a backward pass that an event is in."""
        after = bisect_left(others, at)
        return others[after] if after < len(others) else timeline.end

    lives = list(timeline.buffers)
    updates: dict[int, int] = {}
    for place, one in enumerate(timeline.buffers):
        if _is_applied(one):
            complete = _last_added(timeline, one)
            ends = min(one.death, over(complete))
            gone = ends
            if one.birth < timeline.begin <= complete:
                # The program keeps it, zeroes it and adds to it: it is gone with the step before, and what was to be
                # added is the gradient that is applied.
                gone = min(one.death, over(one.birth + 1))
                lives.append(msgspec.structs.replace(one, birth=complete, death=ends))
            lives[place] = msgspec.structs.replace(one, death=gone)
            updates[ends] = max(updates.get(ends, 0), int(share * one.bytes))
        elif _is_update(timeline, one):
            lives[place] = msgspec.structs.replace(one, bytes=0)
    # At the end: places of others stay as they are.
    lives += [
        BufferLife(size, ends - 1, ends, -1, "temporaries", "backward", "", "")
        for ends, size in updates.items()
        if size
    ]
    return msgspec.structs.replace(timeline, buffers=tuple(lives)), updates_of(timeline) * UPDATE_S


def _last_added(timeline: MemoryTimeline, one: BufferLife) -> int:
    """Event from which a gradient is complete: several parts of a backward pass add to that of a tied weight."""
    adds = [timeline.calls[use] for use in one.uses]
    return max([one.birth + 1, *(call.at for call in adds if call.phase == "backward")])


def updates_of(timeline: MemoryTimeline) -> int:
    """Gradients that are used up one by one: each is an update by itself."""
    return sum(map(_is_applied, timeline.buffers))


def _is_applied(one: BufferLife) -> bool:
    return one.category == "gradients" and one.birth > 0


def _update_bytes(timeline: MemoryTimeline) -> int:
    """Most bytes of temporaries that are alive at once in the optimizer's step of the timeline."""
    change = np.zeros(timeline.end + 1, dtype=np.int64)
    for one in timeline.buffers:
        if _is_update(timeline, one):
            change[one.birth] += one.bytes
            change[one.death] -= one.bytes
    return int(np.cumsum(change).max(initial=0))
