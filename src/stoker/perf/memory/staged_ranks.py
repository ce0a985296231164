"""A pipeline as a way for ranks to share a model: where it is cut, what ranks hold, and seconds of a step; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stoker.perf.communication.collectives import Group, all_gather
from stoker.perf.communication.links import Interconnect
from stoker.perf.communication.times import layers_of
from stoker.perf.memory.choice.fitting import INTERVAL_FRAC, FitQuestion, reserve_of
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.perf.memory.stages import PROGRAM, best_cuts, stage_flow, stage_memory
from stoker.records.fitting import FitMeasure, StageFlow

PROMISE = "within rounding"
"""How far losses are from DDP's: sums of gradients have another order."""
_WORD_BYTES = 64
"""What a rank says of itself when all agree on what comes next."""
_AGREED_A_PASS = 2
"""How often ranks agree in a pass, and once more before a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRanks:
    """A model in stages, one a rank.

    Attributes:
        cuts: paths of modules with which the second and further stages begin.
        peaks: bytes of each rank in a step.
        at_first: bytes of a rank that has all weights, before the model is cut.
        flow: what a step computes and sends.
    """

    cuts: tuple[str, ...]
    peaks: tuple[int, ...]
    at_first: int
    flow: StageFlow

    @property
    def peak(self) -> int:
        """Most that a rank holds."""
        return max(self.at_first, *self.peaks)

    def measure(self, question: FitQuestion, saves: int) -> FitMeasure:
        """The pipeline as a measure, without its seconds."""
        return FitMeasure(
            kind="stages", number=len(self.peaks), paths=self.cuts, peaks=self.peaks, call=question.model.call,
            saves_bytes=saves, promise=PROMISE,
        )  # fmt: skip


def staged_ranks(question: FitQuestion, ranks: int) -> StagedRanks:
    """A program's model in stages: the quickest that fit, else the smallest.

    Args:
        question: of the program as one process.
        ranks: as many stages.

    Raises:
        ValueError: the model cannot be in stages, with the reason as a part of a sentence.
    """
    model, timeline = question.model, question.timeline
    if reason := question.barred.get("stages") or model.not_staged:
        raise ValueError(reason)
    if model.call is None:
        raise ValueError("no call of its DistributedDataParallel was seen that can be written down")
    context = 0 if question.emulated else int(CONTEXT_BYTES)
    whole = reserve_of(timeline, emulated=question.emulated)
    # What the allocator cannot use is the share that it is of the program as it is.
    times = whole.reserved / max(1, whole.requested)
    room = int((question.budget * (1 - INTERVAL_FRAC) - context) / times)
    cuts = best_cuts(layers_of(question.features), timeline, ranks, room)
    found = stage_memory(timeline, cuts, ranks)
    weights = sum(each.bytes for each in timeline.buffers if each.category in ("parameters", "buffers"))
    return StagedRanks(
        cuts=cuts, peaks=tuple(round(times * each.peak) + context for each in found), at_first=weights + context,
        flow=stage_flow(timeline, cuts),
    )  # fmt: skip


def added_s(flow: StageFlow, ranks: int, link: Interconnect) -> float:
    """Seconds that a step of the pipeline takes more than the computation of a rank that has all layers.

    Args:
        flow: of the pipeline.
        ranks: its stages.
        link: of each rank to the others.
    """
    word_s = all_gather(Group(fabric=link, size=ranks, local=1, network=link), _WORD_BYTES * ranks).seconds
    pass_s = _Clocks(flow, ranks, link).pass_s() + _AGREED_A_PASS * word_s
    return flow.passes * (pass_s - flow.plain_s) + word_s + (flow.share - 1) * flow.update_s


class _Clocks:
    """Seconds from the begin of a pass at which each rank is where it is.

    A rank waits for what it receives, which comes over while it does: gloo sends to who has asked. What it sends leaves
    one after the other.

    Args:
        flow: of the pipeline.
        ranks: its stages.
        link: of each rank to the others.
    """

    def __init__(self, flow: StageFlow, ranks: int, link: Interconnect) -> None:
        self._flow, self._ranks, self._link = flow, ranks, link
        self._now = [0.0] * ranks
        self._sent = [0.0] * ranks
        """When all that a rank has sent has left."""

    def pass_s(self) -> float:
        """Seconds of a pass there and back."""
        stages = range(self._ranks)
        self._go(stages, self._flow.forward_s, self._flow.sends)
        begun = max(self._now) + self._flow.loss_s
        self._now = [begun] * self._ranks
        back = [(target, source, nbytes) for source, target, nbytes in self._flow.sends if source != PROGRAM]
        self._go(reversed(stages), self._flow.backward_s, back)
        return max(self._now)

    def _go(self, stages: Iterable[int], seconds: Sequence[float], sends: Sequence[tuple[int, int, int]]) -> None:
        """All batches through all stages, and what is sent to the batches' ranks."""
        order = list(stages)
        begun = max(self._now)
        ready: dict[tuple[int, int], float] = {}
        for batch in range(self._ranks):
            for stage in order:
                for source, target, nbytes in sends:
                    if target == stage:
                        self._receive(batch if source == PROGRAM else source, stage, nbytes,
                                      ready.get((source, batch), begun))  # fmt: skip
                self._now[stage] += seconds[stage]
                ready[stage, batch] = self._now[stage]
        for batch in range(self._ranks):
            for source, target, nbytes in sends:
                if target == PROGRAM:
                    self._receive(source, batch, nbytes, ready[source, batch])
        # A rank goes on when all that it has sent has come.
        self._now = [max(each) for each in zip(self._now, self._sent, strict=True)]

    def _receive(self, source: int, target: int, nbytes: int, ready_s: float) -> None:
        begun = max(self._now[target], ready_s)
        if source != target:
            begun = max(begun, self._sent[source])
            self._sent[source] = begun = begun + self._link.step_s + nbytes / self._link.bandwidth
        self._now[target] = begun
