"""What one rank of a pipeline holds, computes and sends, predicted from a traced step of the whole program; pure.

All batches go forward before any goes back (GPipe, arXiv 1811.06965, section 2.3), one a rank. A stage then keeps what
its layers save for the backward passes of all of them, and the tensors that go between stages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec.structs

from stoker.core.units import format_bytes
from stoker.perf.communication.pipeline_stages import stages_of
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import Layer, Phase, block_of
from stoker.records.fitting import StageFlow

PROGRAM = -1
"""The place of what every rank does with its own batch: its loss, behind the last stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one stage.

    Attributes:
        weights, gradients, states: of its layers.
        lasting: buffers of the module, which all ranks have, and this rank's batch.
        kept: that one batch leaves for its backward pass.
        received: tensors from other stages that one batch brings, kept as long.
        sent: tensors that one batch gives to other stages and outputs, which none of its layers keeps.
        outputs: of one batch, that come back to its rank.
        forward, backward: most that one batch takes in its passes through the stage, what it keeps included, and the
            gradients that are being added.
        loss: most that a rank takes between the two, besides its outputs.
        update: most that the optimizer takes besides its states.
        peak: most that is alive at once.
    """

    weights: int
    gradients: int
    states: int
    lasting: int
    kept: int
    received: int
    sent: int
    outputs: int
    forward: int
    backward: int
    loss: int
    update: int
    peak: int


def stage_memory(timeline: MemoryTimeline, cuts: Sequence[str], ranks: int) -> tuple[StageMemory, ...]:
    """The memory of each stage in a step.

    Args:
        timeline: of a step of the whole program, with a loss, and with states of its optimizer from before. Of several
            passes, the last one counts: gradients are there then.
        cuts: paths of modules with which the second and further stages begin.
        ranks: as many as there are stages.
    """
    reading = _Reading(timeline, cuts)
    return tuple(reading.memory(stage, ranks) for stage in range(len(cuts) + 1))


def stage_flow(timeline: MemoryTimeline, cuts: Sequence[str]) -> StageFlow:
    """What the stages compute and send; arguments as those of :func:`stage_memory`, with predicted seconds."""
    return _Reading(timeline, cuts).flow()


def cuts_of(
    layers: Sequence[Layer], timeline: MemoryTimeline, ranks: int, budget: int | None = None
) -> tuple[str, ...]:
    """Paths of the modules with which the second and further stages begin.

    The slowest stage takes as little time as possible; where the stages do not fit so, the fullest one holds as little.

    Args:
        layers: in the order of the forward pass.
        timeline: of a step of the whole program, with predicted seconds.
        ranks: as many stages.
        budget: most bytes that a rank may hold; None for no limit.

    Raises:
        ValueError: there are fewer parts than ranks, or no cut fits.
    """
    found = best_cuts(layers, timeline, ranks, budget)
    if budget is None:
        return found
    least = max(each.peak for each in stage_memory(timeline, found, ranks))
    if least <= budget:
        return found
    raise ValueError(
        f"`budget` must hold the fullest of {ranks} stages, which takes {format_bytes(least)}, got "
        f"{format_bytes(budget)}; use more ranks or a smaller batch"
    )


def best_cuts(
    layers: Sequence[Layer], timeline: MemoryTimeline, ranks: int, budget: int | None = None
) -> tuple[str, ...]:
    """The same; the cuts with the least peak where none fits.

    Raises:
        ValueError: there are fewer parts than ranks.
    """
    places = {layer.module: place for place, layer in enumerate(layers)}
    seconds = [0.0] * len(layers)
    for call in timeline.calls:
        if call.phase != "optimizer":
            seconds[places.get(call.module, 0)] += call.seconds
    found = _cut(layers, seconds, ranks)
    if budget is None:
        return found
    totals = {
        name: sum(each.bytes for each in timeline.buffers if each.category == name)
        for name in ("parameters", "gradients", "optimizer")
    }
    whole = sum(totals.values()) / max(1, totals["parameters"])
    held = [each.saved_bytes * ranks + whole * (each.dense_bytes + each.embedding_bytes) for each in layers]
    peaks: dict[tuple[str, ...], int] = {}
    for cuts in dict.fromkeys((found, _cut(layers, held, ranks))):
        peaks[cuts] = max(each.peak for each in stage_memory(timeline, cuts, ranks))
        if peaks[cuts] <= budget:
            return cuts
    return min(peaks, key=peaks.__getitem__)


def _cut(layers: Sequence[Layer], costs: Sequence[float], ranks: int) -> tuple[str, ...]:
    starts = [layers[stage.start].module for stage in stages_of(layers, costs, ranks)[1:]]
    return tuple(block_of(path) or path for path in starts)


class _Reading:
    """A timeline by stages."""

    def __init__(self, timeline: MemoryTimeline, cuts: Sequence[str]) -> None:
        self._passes = _passes_of(timeline)
        self._timeline = timeline = _from(timeline, self._passes[-1]) if len(self._passes) > 1 else timeline
        self._cuts = cuts
        self._stages = _stages_of(timeline, cuts)
        self._starts = [call.at for call in timeline.calls]
        self._turn = next((call.at for call in timeline.calls if call.phase == "backward"), timeline.end)
        """Where the backward pass begins."""
        self._first = next((each.at for each in timeline.calls if each.module in self._stages), timeline.begin)
        """Where the forward pass begins."""
        self._places = self._placed()
        self._whole = sum(each.bytes for each in timeline.buffers if each.category == "parameters")

    def _stage(self, module: str) -> int:
        """The stage of a module; of one that is never called, that of the module inside which it is."""
        while module and module not in self._stages:
            module = module.rpartition(".")[0]
        return self._stages.get(module, PROGRAM) if module else PROGRAM

    def _placed(self) -> list[int]:
        """The stage of each call: outside of modules, that of the modules around it in time."""
        calls = self._timeline.calls
        last = max((at for at, call in enumerate(calls) if call.phase == "forward" and call.module), default=-1)
        found: list[int] = []
        stage, phase = 0, "forward"
        for place, call in enumerate(calls):
            if call.phase != phase:
                # The backward pass begins with that of the loss.
                stage, phase = PROGRAM, call.phase
            named = self._stage(call.module)
            stage = named if named >= 0 else PROGRAM if phase == "forward" and place > last else stage
            found.append(stage)
        return found

    def _stage_of(self, each: BufferLife) -> int:
        """The stage that makes a buffer."""
        named = self._stage(each.module)
        place = bisect_right(self._starts, each.birth) - 1
        return named if named >= 0 or place < 0 else self._places[place]

    def flow(self) -> StageFlow:
        """What the stages compute and send."""
        count = len(self._cuts) + 1
        seconds: dict[Phase, list[float]] = {"forward": [0.0] * (count + 1), "backward": [0.0] * (count + 1)}
        update_s = 0.0
        for call, stage in zip(self._timeline.calls, self._places, strict=True):
            if call.phase == "optimizer":
                update_s += call.seconds
            else:
                seconds[call.phase][stage] += call.seconds  # the program's are the last ones
        sends: dict[tuple[int, int], int] = {}
        for each in self._timeline.buffers:
            is_made = each.birth >= self._timeline.begin and each.category in ("activations", "temporaries")
            if (is_made and each.phase == "forward") or each.category == "inputs":
                source = self._stage_of(each) if is_made else PROGRAM
                for stage in self._uses(each, "forward") - {source}:
                    sends[source, stage] = sends.get((source, stage), 0) + each.bytes
        weights = max(map(self._weights, range(count)))
        return StageFlow(
            forward_s=tuple(seconds["forward"][:-1]), backward_s=tuple(seconds["backward"][:-1]),
            loss_s=seconds["forward"][-1] + seconds["backward"][-1], plain_s=sum(map(sum, seconds.values())),
            update_s=update_s, share=weights / max(1, self._whole),
            sends=tuple((*ends, nbytes) for ends, nbytes in sorted(sends.items())), passes=len(self._passes),
        )  # fmt: skip

    def _weights(self, stage: int) -> int:
        """Bytes of the weights that a stage keeps."""
        return self._owned(stage) + self._tied(stage)

    def _owned(self, stage: int) -> int:
        """Bytes of the weights of a stage's modules; what has no stage is the first one's."""
        return sum(
            each.bytes for each in self._timeline.buffers
            if each.category == "parameters" and max(0, self._stage(each.module)) == stage
        )  # fmt: skip

    def _tied(self, stage: int) -> int:
        """Bytes of the weights of other stages' modules that a stage uses as well."""
        return sum(
            each.bytes for each in self._timeline.buffers
            if each.category == "parameters" and max(0, self._stage(each.module)) != stage
            and stage in self._uses(each, "forward")
        )  # fmt: skip

    def memory(self, stage: int, ranks: int) -> StageMemory:
        """The memory of one stage."""
        buffers = self._timeline.buffers
        made = [
            (place, each)
            for place, each in enumerate(buffers)
            if each.category in ("activations", "temporaries") and each.birth >= self._timeline.begin
        ]
        own = [(place, each) for place, each in made if self._stage_of(each) == stage]
        mine = {place for place, _ in own}
        weights = self._weights(stage)
        share = weights / max(1, self._whole)
        states = round(share * sum(each.bytes for each in buffers if each.category == "optimizer"))
        kept = {place for place, each in own if self._is_kept(each, stage)}
        received = [place for place, _ in made if place not in mine and self._reads(place, stage)]
        given = [place for place, each in own if each.phase == "forward" and self._is_given(place, stage)]
        outputs = [
            place for place, each in made
            if each.phase == "forward" and self._stage_of(each) >= 0 and self._is_read(place, PROGRAM)
        ]  # fmt: skip
        totals = {
            "kept": sum(buffers[place].bytes for place in kept),
            "received": sum(buffers[place].bytes for place in received),
            "sent": sum(buffers[place].bytes for place in given if place not in kept),
            "outputs": sum(buffers[place].bytes for place in outputs),
        }
        forward = self._most((each for _, each in own if each.phase == "forward"), 0, self._turn, kept_until=self._turn)
        back = [each for place, each in own if each.phase == "backward" or place in kept]
        old, sums = self._old_gradients(stage, share), self._gradients(stage)
        tied = self._tied(stage)
        gradients = tied + sum(each.bytes for each in sums)
        is_lasting = any(each.birth < self._timeline.begin for each in sums)
        held, made_now = (gradients, []) if is_lasting else (0, sums)
        # The first batch's gradients stay; those of further ones are added to them, one after the other.
        first = self._most([*back, *made_now], self._turn, self._timeline.end) + (0 if is_lasting else tied)
        backward = self._most([*back, *map(self._summed, made_now)], self._turn, self._timeline.end)
        loss = self._most(
            (each for _, each in made if self._stage_of(each) == PROGRAM and each.phase != "optimizer"),
            0, self._timeline.end,
        )  # fmt: skip
        update = round(share * self._most((e for _, e in made if e.phase == "optimizer"), 0, self._timeline.end))
        lasting = self._most(
            (each for each in buffers if each.category in ("buffers", "inputs")), self._first, self._timeline.end
        )
        batch = totals["kept"] + totals["received"]
        # What has been received and its gradient are as large, and the latter waits until all have been sent.
        returned = sum(buffers[place].bytes for place in given)
        back_peaks = [
            (ranks - 1 - turn) * batch + (turn + 1) * totals["received"] + returned
            + (backward + (0 if is_lasting else gradients) if turn else first)
            for turn in range(ranks)
        ]  # fmt: skip
        own_outputs = 0 if stage == len(self._cuts) else totals["outputs"]
        peaks = (
            old + (ranks - 1) * (batch + totals["sent"]) + totals["received"] + forward,
            old + ranks * (batch + totals["sent"]) + own_outputs,
            old + ranks * batch + own_outputs + loss,
            held + own_outputs + max(back_peaks),
            gradients + update,
        )
        return StageMemory(
            weights=weights, gradients=gradients, states=states, lasting=lasting, forward=forward, backward=backward,
            loss=loss, update=update, peak=weights + states + lasting + max(peaks), **totals,
        )  # fmt: skip

    def _gradients(self, stage: int) -> list[BufferLife]:
        """The gradients of a stage's weights behind the backward pass; what has no stage is the first one's."""
        return [
            each
            for each in self._timeline.buffers
            if each.category == "gradients" and each.death > self._turn and max(0, self._stage(each.module)) == stage
        ]

    def _old_gradients(self, stage: int, share: float) -> int:
        """Bytes of gradients that are there when the forward pass begins; of ones that die, the weights are unknown."""
        there = [e for e in self._timeline.buffers if e.category == "gradients" and e.birth < self._first < e.death]
        known = sum(each.bytes for each in there if each.module and self._stage(each.module) == stage)
        return known + round(share * sum(each.bytes for each in there if not each.module))

    def _summed(self, each: BufferLife) -> BufferLife:
        """A gradient that ends when it is added to the one that is there: behind the call that makes it."""
        after = bisect_right(self._starts, each.birth) + 1
        death = self._starts[after] if after < len(self._starts) else self._timeline.end
        return msgspec.structs.replace(each, birth=max(each.birth, self._turn), death=max(death, each.birth + 1))

    def _uses(self, each: BufferLife, phase: Phase) -> set[int]:
        """Stages whose calls of a phase read or write a buffer, behind its birth."""
        calls = self._timeline.calls
        return {
            self._places[use] for use in each.uses if calls[use].phase == phase and calls[use].at >= each.birth
        }  # fmt: skip

    def _is_kept(self, each: BufferLife, stage: int) -> bool:
        """Whether a stage's own backward pass needs what its forward pass has made."""
        return each.phase == "forward" and stage in self._uses(each, "backward")

    def _is_read(self, place: int, stage: int) -> bool:
        return stage in self._uses(self._timeline.buffers[place], "forward")

    def _reads(self, place: int, stage: int) -> bool:
        """Whether a stage reads what an earlier one has made."""
        each = self._timeline.buffers[place]
        return each.phase == "forward" and 0 <= self._stage_of(each) < stage and self._is_read(place, stage)

    def _is_given(self, place: int, stage: int) -> bool:
        """Whether others read what a stage has made."""
        return bool(self._uses(self._timeline.buffers[place], "forward") - {stage})

    def _most(self, buffers: Iterable[BufferLife], start: int, stop: int, kept_until: int = 0) -> int:
        """Most bytes of some buffers alive at once between two events."""
        changes: dict[int, int] = {}
        for each in buffers:
            birth, death = max(each.birth, start), min(each.death, stop)
            if death > birth:
                changes[birth] = changes.get(birth, 0) + each.bytes
                changes[death] = changes.get(death, 0) - each.bytes
        now = most = 0
        for at in sorted(changes):
            now += changes[at]
            most = max(most, now)
        return most


def _stages_of(timeline: MemoryTimeline, cuts: Sequence[str]) -> dict[str, int]:
    """The stage of each module that is called, in the order of its first call."""
    found: dict[str, int] = {}
    stage = 0
    for call in timeline.calls:
        if call.phase != "forward" or not call.module:
            continue
        if stage < len(cuts) and (call.module == cuts[stage] or call.module.startswith(f"{cuts[stage]}.")):
            stage += 1
        found.setdefault(call.module, stage)
    return found


def _passes_of(timeline: MemoryTimeline) -> list[int]:
    """Places of the calls with which forward passes begin that a backward pass follows."""
    found: list[int] = []
    begins, inside = 0, False
    for place, call in enumerate(timeline.calls):
        if call.phase == "forward" and inside:
            begins, inside = place, False
        elif call.phase == "backward" and not inside:
            found.append(begins)
            inside = True
    return found


def _from(timeline: MemoryTimeline, place: int) -> MemoryTimeline:
    """The end of a timeline, whose step begins with a call."""
    return msgspec.structs.replace(
        timeline, begin=timeline.calls[place].at, calls=timeline.calls[place:],
        buffers=tuple(
            msgspec.structs.replace(each, uses=tuple(use - place for use in each.uses if use >= place))
            for each in timeline.buffers
            if each.death > timeline.calls[place].at
        ),
    )  # fmt: skip
