"""Whether a candidate fits its GPUs, and what is done to its step so that it does.

Where the program's timeline is known, it is that of each replica: bytes of passes grow with the micro-batch, what
replicas share is divided, and it is ``--fit`` that chooses, by seconds of the candidate's GPU: modules to repeat, what
they keep, gradients to use up, what lies in host memory. Its chunks of samples are micro-batches here, which take no
forward pass twice. A replica that is split over GPUs, and features without a timeline, are judged layer by layer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import msgspec.structs

from stoker.perf.communication.blocks import paths_of
from stoker.perf.communication.times import PassTimes, layers_of
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.records import StepFeatures
from stoker.perf.memory import PARTS, Fit, capacity
from stoker.perf.memory.choice.fitting import FitPlanner, FitQuestion
from stoker.perf.memory.choice.offloading import HostLink, sent_away
from stoker.perf.memory.choice.options import Options, updates_of, with_options
from stoker.perf.memory.choice.units import ModuleUnit, all_units, nested_units, repeated
from stoker.perf.memory.needs import divided, needs
from stoker.perf.memory.reserve import CONTEXT_BYTES, replay
from stoker.perf.memory.resident import quickest_blocks
from stoker.perf.memory.timeline import by_category, step_peak, with_seconds
from stoker.perf.planning.pricing import precision_of
from stoker.perf.planning.space import Candidate
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.strategy import Strategy
from stoker.records.fitting import Keeps, TracedModel

_UNPLANNED = dict.fromkeys(("expandable", "one_by_one"), "it is taken for granted")
"""What costs nothing, and is no part of a plan."""
_TOGETHER = {"used_up": "gradients of several replicas or micro-batches are summed before they are applied"}
_PARTS = {"parameters": "weights", "gradients": "gradients", "optimizer": "optimizer", "inputs": "input"}
"""Parts of a :class:`~stoker.perf.memory.Fit` by category; all others are activations."""


class PlannedMemory:
    """Memory of candidates; what is found is kept for others that differ in their GPU alone.

    Args:
        precision: of products; by default that of most FLOPs of the features.
        traced: features and timeline of the program's own step; None where there is no timeline.
        model: what may be done to the program's model.
    """

    def __init__(
        self, precision: str | None = None, traced: tuple[StepFeatures, MemoryTimeline] | None = None,
        model: TracedModel | None = None,
    ) -> None:  # fmt: skip
        # Operands of FP8 products are kept in 16 bits.
        self._precision = "bf16" if precision == "fp8" else precision
        self._traced, self._model = traced, model or TracedModel()
        self._known: dict[tuple[object, ...], tuple[dict[str, float], tuple[str, ...]]] = {}
        self._chosen: dict[tuple[object, ...], Strategy] = {}
        self._steps: dict[tuple[object, ...], MemoryTimeline] = {}
        self._times: dict[str, PassTimes | None] = {}
        self._nested: dict[tuple[object, ...], tuple[ModuleUnit, ...]] = {}

    def fits(self, features: StepFeatures, candidate: Candidate) -> Fit:
        """Memory of a GPU for a micro-batch's features, as a candidate runs it."""
        key = (candidate.micro_batch, candidate.strategy, candidate.gpus)
        if key not in self._known:
            self._known[key] = self._needs(features, candidate)
        parts, notes = self._known[key]
        return Fit(needed=sum(parts.values()), available=capacity(candidate.offer.gpu), parts=parts, notes=notes)

    def spares(self, features: StepFeatures, candidate: Candidate) -> Strategy:
        """A candidate's strategy with what makes it fit in the least time; with what saves most where nothing does."""
        plain = self.fits(features, candidate)
        card = candidate.offer.gpu
        key = (candidate.micro_batch, candidate.strategy, candidate.gpus, card.name, card.pcie, plain.available)
        if key not in self._chosen:
            self._chosen[key] = self._quickest(features, candidate, plain)
        return self._chosen[key]

    def _quickest(self, features: StepFeatures, candidate: Candidate, plain: Fit) -> Strategy:
        strategy = candidate.strategy
        room = plain.available - plain.parts["context"]
        beside = sum(plain.parts[name] for name in PARTS if name not in ("activations", "context", "fragmentation"))
        whole = beside + plain.parts["activations"]
        room *= whole / (whole + plain.parts["fragmentation"])
        if self._is_timed(candidate):
            room -= plain.parts["buffers"]
            step, link = self._priced(features, candidate), _link(candidate)
            sums = candidate.replicas > 1 or strategy.accumulation > 1
            question = FitQuestion(
                name=features.name, features=features, timeline=step, model=self._model, budget=int(room), device="",
                emulated=True, barred=_UNPLANNED | (_TOGETHER if sums else {}), link=link,
            )  # fmt: skip
            units = self._units(step, link, candidate.micro_batch, candidate.offer.gpu.name)
            found, _ = FitPlanner(question, units).best()
            away = tuple(path for path, keeps in found.keeps.items() if keeps == "away")
            return replace(
                strategy,
                recomputed=tuple(path for path, keeps in found.keeps.items() if keeps == "nothing"),
                products_kept=tuple(path for path, keeps in found.keeps.items() if keeps == "products"),
                updates=updates_of(step) if found.options.used_up else 0,
                away=away, states_away=found.options.states_away,
                copies_s=_copies_s(step, found.options, _of_paths(units, away), link, strategy.accumulation),
            )  # fmt: skip
        blocks = quickest_blocks(features, strategy, room - beside)
        return replace(strategy, recomputed=paths_of(layers_of(features)) if blocks is None else blocks)

    def _is_timed(self, candidate: Candidate) -> bool:
        strategy = candidate.strategy
        return self._traced is not None and strategy.tensor == strategy.pipeline == 1

    def _needs(self, features: StepFeatures, candidate: Candidate) -> tuple[dict[str, float], tuple[str, ...]]:
        self._precision = self._precision or precision_of(features)
        parts, notes = needs(features, candidate.strategy, candidate.gpus, precision=self._precision)
        if not self._is_timed(candidate):
            return parts, notes
        step = self._step(features, candidate)
        strategy = candidate.strategy
        link = _link(candidate)
        units = self._units(step, link)
        step, _ = with_options(step, Options(used_up=bool(strategy.updates), states_away=strategy.states_away), link)
        if strategy.away:
            step, _ = sent_away(step, _of_paths(units, strategy.away), _linked(link))
        ways: dict[str, Keeps] = dict.fromkeys(strategy.recomputed, "nothing")
        ways |= dict.fromkeys(strategy.products_kept, "products")
        chosen: list[tuple[ModuleUnit, Keeps]] = [
            (unit, ways[unit.path]) for unit in all_units(units) if unit.path in ways
        ]  # fmt: skip
        if chosen:
            step, _ = repeated(step, chosen)
        sums = dict.fromkeys(PARTS, 0.0) | {"buffers": parts["buffers"]}
        for name, size in by_category(step, step_peak(step)).items():
            sums[_PARTS.get(name, "activations")] += size
        sums["fragmentation"] = self._unusable * sum(sums.values())
        sums["context"] = CONTEXT_BYTES
        return sums, notes

    def _step(self, features: StepFeatures, candidate: Candidate) -> MemoryTimeline:
        """The timeline of a replica."""
        assert self._traced is not None
        shares = divided(features, candidate.strategy, candidate.replicas)
        key = (candidate.micro_batch, shares)
        if key not in self._steps:
            own, timeline = self._traced
            times = candidate.micro_batch * own.micro_batches / own.batch_size
            self._steps[key] = _divided(timeline, times, shares)
        return self._steps[key]

    def _priced(self, features: StepFeatures, candidate: Candidate) -> MemoryTimeline:
        """The same with seconds of the candidate's GPU, where these can be predicted."""
        assert self._traced is not None
        step, (own, _), card = self._step(features, candidate), self._traced, candidate.offer.gpu
        if card.name not in self._times:
            rank = Predictor().rank(own, card)
            self._times[card.name] = None if rank.tier == "refused" else rank.times
        times = self._times[card.name]
        if times is None:
            return step
        share = candidate.micro_batch * own.micro_batches / own.batch_size
        timed = with_seconds(step, own, times)
        calls = tuple(
            call if call.phase == "optimizer" else msgspec.structs.replace(call, seconds=share * call.seconds)
            for call in timed.calls
        )
        return msgspec.structs.replace(timed, calls=calls)

    def _units(self, step: MemoryTimeline, link: HostLink | None, *timed: object) -> tuple[ModuleUnit, ...]:
        """Units that may be repeated or, where there is a link, lie in host memory.

        Args:
            step: whose units they are.
            link: to host memory.
            timed: what their seconds depend on; all else is alike for all steps of the program.
        """
        key = (link is not None, *timed)
        if key not in self._nested:
            stay = None if link is None else {*self._model.class_stays, ""}
            kept = self._model.kept_as_is.keys()
            self._nested[key] = () if self._model.compiled else nested_units(step, kept, stay)
        return self._nested[key]

    @cached_property
    def _unusable(self) -> float:
        """What the allocator reserves beyond requests with expandable segments, as a share of them."""
        assert self._traced is not None
        timeline = self._traced[1]
        found = replay(timeline, expandable=True, workspace_bytes=timeline.workspace_bytes)
        return found.unusable / max(1, found.requested)


def _link(candidate: Candidate) -> HostLink | None:
    """To host memory, through the slot of the GPU; None for replicas, none of which ``--fit`` gives host memory."""
    return HostLink(candidate.offer.gpu.pcie, overlaps=True) if candidate.replicas == 1 else None


def _copies_s(
    step: MemoryTimeline, options: Options, away: Sequence[ModuleUnit], link: HostLink | None, times: int
) -> float:  # fmt: skip
    """Seconds that host memory adds to an optimizer step, whose micro-batches send activations as often."""
    changed, seconds = with_options(step, options, link)
    _, before = with_options(step, replace(options, states_away=False))
    sent = sent_away(changed, away, _linked(link))[1] if away else 0.0
    return seconds - before + times * sent


def _of_paths(units: Sequence[ModuleUnit], paths: Collection[str]) -> list[ModuleUnit]:
    """Units in the order of their forward passes."""
    return [unit for unit in all_units(units) if unit.path in paths]


def _linked(link: HostLink | None) -> HostLink:
    assert link is not None, "only what has a link is planned with host memory"
    return link


def _divided(timeline: MemoryTimeline, times: float, shares: tuple[float, float, float]) -> MemoryTimeline:
    """The timeline of a replica with another micro-batch, that keeps its shares of weights, gradients and states."""
    weights, gradients, states = shares

    def factor(each: BufferLife) -> float:
        if each.category == "optimizer" or (each.category == "temporaries" and each.phase == "optimizer"):
            return states
        if each.category in ("parameters", "gradients"):
            return weights if each.category == "parameters" else gradients
        return 1.0 if each.category == "buffers" else times

    lives = tuple(msgspec.structs.replace(each, bytes=round(each.bytes * factor(each))) for each in timeline.buffers)
    return msgspec.structs.replace(timeline, buffers=lives)
