# (batches are whatever the loader makes)
"""The cut of one loader's steps, from the first recorded step to the verdict of the trial.

Some steps are recorded, a cut is chosen and sent to the workers; the first prepared batches are computed on both sides
and compared. Then the program alternates between steps with and without the cut, and the cut stays only if it pays.
"""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from stoker.core.trials.alternating import Arm, CutTrial
from stoker.core.units import format_count, format_seconds
from stoker.graph.choice.cut import NO_TIME, Prices, choose
from stoker.graph.choice.variant_state import Shown, VariantPhase, VariantState
from stoker.graph.dataflow import Argument, Cut, Form, Graph
from stoker.graph.leaves import leaves_of, signature_of
from stoker.graph.loop_memory import LoopMemory
from stoker.graph.recording.common_graph import Recording, merge, spread_state
from stoker.graph.recording.recorder import Recorder, Trace
from stoker.graph.replay.call_matcher import NOTHING, Substitution
from stoker.graph.replay.stage import PlannedCall, Prepared, Stage, StagePlan, step_of, with_drops
from stoker.graph.replay.verifier import Verifier
from stoker.graph.torch_private import unseen
from stoker.graph.watching.attention import WatchBackoff
from stoker.graph.watching.step_watcher import Conductor

SKIPPED_BATCHES = 2
"""Batches of a loader before recording: first steps allocate and warm up."""
RECORDED_STEPS = 4
MAX_VARIANTS = 8
_MAX_REVISIONS = 5
"""Times a cut is chosen again after a finding; then its steps are no longer cut."""
_EAGER_BATCHES, _LOOK_EVERY = 64, 16
"""Up to this number every batch is inspected, then one in so many: an inspection costs some 10 us."""
_PROBE_BYTES = 1 << 23
_BEST_PRICES = Prices(bytes_per_s=1e12)
"""More than any core copies: a cut that does not pay at this rate never pays."""

Outcome = Literal["moved", "stayed", "reverted"]


@dataclass(frozen=True, kw_only=True)
class CutVerdict:
    """The outcome of a variant, for reports and records."""

    variant: int
    recording: Recording
    cut: Cut
    outcome: Outcome
    reason: str
    gain: float = 0.0
    """Measured: 1 - time of a step with the cut / without it; 0 when not measured."""

    @property
    def graph(self) -> Graph:
        """The recorded graph."""
        return self.recording.graph


@dataclass(slots=True)
class _Variant(VariantState):
    """State and cut of one variant."""

    traces: list[Trace] = field(default_factory=list[Trace])
    recording: Recording | None = None
    substitution: Substitution | None = None
    followed: frozenset[int] = frozenset()
    """Calls that are followed in every step, for the random ones among them."""
    following: Substitution | None = None
    """Used for steps on batches that workers have not prepared."""
    plan: StagePlan | None = None
    cut: Cut | None = None
    doubted: int | None = None
    """Number of the call that did not come in several steps, while what comes instead is recorded."""


def _reraise(error: Exception) -> None:
    raise error


class Cutter:
    """Finds and keeps the cut of one loader.

    Args:
        conductor: watches steps for all loaders of the process.
        ship: sends the loader's workers the work on a collated batch (a pickled :class:`Stage`; empty for none).
        report: called with each verdict.
        prices: current costs of transport and worker time. Measuring them takes time: a function is called only if a
            cut could pay at the best possible prices.
        tried: a cut is kept only if the program is faster with it.
        sample: random calls on the batch draw from separate streams of the work item, and may move.
        chooser: chooses the cut of a graph.
        fail: called with an error inside stoker, after which the loader is not cut; raises it by default.
        memory: results of earlier loaders of the same loop; this one adds to it.
    """

    def __init__(
        self,
        conductor: Conductor,
        ship: Callable[[bytes], None],
        report: Callable[[CutVerdict], None],
        prices: Prices | Callable[[], Prices],
        *,
        tried: bool = True,
        sample: bool = False,
        chooser: Callable[[Graph, Prices], Cut] = choose,
        fail: Callable[[Exception], None] = _reraise,
        memory: LoopMemory | None = None,
    ) -> None:
        self._conductor = conductor
        self._ship = ship
        self._report = report
        self._priced = prices
        self._tried = tried
        self._sample = sample
        self._chooser = chooser
        self._fail = fail
        self._memory = memory or LoopMemory()
        self._broken = False
        self._variants: dict[tuple[Any, ...], _Variant] = {}
        self._numbers: dict[Recording, int] = {}
        """Numbers of the reported variants, by signature of the batch and by phase of the program."""
        self._batches = 0
        self._plans = 0
        self._delivered_s = 0.0
        self._ended: list[Trace] = []
        self._unwatched_s = float("inf")
        self._label = Arm.OFF
        self._seed = 0
        self._passing = 0
        """Number of following batches that are not inspected."""
        self._resting = False
        """Whether no step is recorded meanwhile."""
        self._attention = WatchBackoff()

    # -- the loader's steps ------------------------------------------------------------------------------------------

    def asked(self) -> None:
        """The program asks for the next batch; :meth:`delivered` or :meth:`failed` follows."""
        if self._resting:
            return
        now = time.perf_counter()
        if self._memory.trial is not None and self._delivered_s:
            self._weigh(now)
        watching = self._conductor.asked(self)
        if self._passing:
            self._resting = not watching
        else:
            self._settle_recorded(now - self._delivered_s if self._delivered_s else 0.0)

    def failed(self) -> None:
        """Handles an error or the end instead of a batch: the program continues with the batches that it has."""
        if not self._resting:
            self._conductor.resume()

    def left(self) -> None:
        """The program has left the iteration."""
        self._delivered_s = 0.0
        self._passing, self._resting = 0, False
        if self._memory.trial is not None:
            self._memory.trial.pause()
        self._conductor.left(self)
        self._settle_recorded(0.0)
        self._look_again()

    def _look_again(self) -> None:
        """The next iteration may be another phase; ever more seldom, a step of it shows whether one left whole is."""
        for variant in self._variants.values():
            if not self._broken and len(self._numbers) < MAX_VARIANTS and variant.looks_again():
                variant.traces.clear()

    def delivered(self, item: Any, seed: Callable[[], int] = int) -> Any:
        """The batch for the program, observed from now on if needed.

        Args:
            item: what a worker made.
            seed: gives that of the work item.
        """
        if self._passing and (not isinstance(item, Prepared) or self._attention.idle):
            self._passing -= 1
            self._batches += 1
            if not self._resting:
                self._conductor.resume()
            return self.batch_of(item)
        self._passing, self._resting = 0, False
        if self._sample:
            self._seed = seed()
        batch = self.batch_of(item)
        with unseen():
            self._guard(lambda: self._deliver(item, batch))
            self._conductor.resume()
        return batch

    def _deliver(self, item: Any, batch: Any) -> None:
        self._batches += 1
        self._label = Arm.ON if isinstance(item, Prepared) else Arm.OFF
        if isinstance(item, Prepared):
            self._substitute(item)
        elif self._sample or self._memory.recordings or self._batches > SKIPPED_BATCHES:
            self._record(batch)
        if self._attention.idle and not self._sample and self._memory.trial is None:
            self._passing = self._attention.pause
        self._delivered_s = time.perf_counter()

    def _saw(self, *, used: bool) -> None:
        """Ends an observed step; once the program touches its batches, all are observed again."""
        if used and self._attention.idle:
            self._passing = 0
        self._attention.saw(used=used)

    def _guard(self, act: Callable[[], None], error: Exception | None = None) -> None:
        """Runs an action unless an internal error happened before; keeps such errors from the program."""
        if self._broken:
            return
        try:
            if error is not None:
                raise error
            act()
        except Exception as found:
            self._give_up(found)

    def _finish(self, verifier: Verifier) -> None:
        """What the program still holds becomes plain; also after a mistake, on steps that were under way then."""
        try:
            verifier.finish()
        except Exception as error:
            if not self._broken:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Handles an internal error: this loader is not cut from now on, and the records say so."""
        self._broken = True
        self._memory.trial = None
        for variant in self._variants.values():
            variant.phase, variant.plan, variant.substitution = VariantPhase.WHOLE, None, None
        self._ship(b"")
        self._fail(error)

    def abandon(self) -> None:
        """Stops recording and moving; runs after an internal error, so it may raise."""
        self._broken = True
        try:
            self._ship(b"")
        finally:
            self._conductor.left(self)

    def batch_of(self, item: Any) -> Any:
        """The loader's own batch in what workers made."""
        return item.batch if isinstance(item, Prepared) else item

    # -- recording ---------------------------------------------------------------------------------------------------

    def _record(self, batch: Any) -> None:
        if not self._looks():
            if self._memory.trial is None:
                self._passing = -self._batches % _LOOK_EVERY - 1
            return
        leaves = leaves_of(batch)
        if not leaves:
            return
        signature = signature_of(leaves)
        variant = self._variants.get(signature)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                return
            variant = self._variants[signature] = _Variant()
        if variant.phase is not VariantPhase.RECORDING:
            self._follow(variant, batch, leaves)
            return
        expected = len(variant.traces[-1].calls) if variant.traces else 0
        recorder = Recorder(leaves, signature, expected, self._seed if self._sample else None)
        begun, busy = time.perf_counter(), time.process_time()

        def take(compiled: bool) -> None:
            trace = recorder.finish(time.perf_counter() - begun, time.process_time() - busy)
            trace.bare = compiled
            if recorder.began and variant.phase is VariantPhase.RECORDING:
                variant.traces.append(trace)
                self._ended.append(trace)

        def end(compiled: bool) -> None:
            self._saw(used=recorder.began)
            self._guard(lambda: take(compiled), recorder.error)

        self._conductor.begin(self, recorder, end, learns=True)

    def _remember(self, variant: _Variant) -> None:
        """Resumes with earlier recordings of such steps, by another loader of the same loop or in this phase."""
        recording = self._memory.like(variant.traces[0])
        if recording is None or (recording is variant.recording and variant.doubted is not None):
            return
        self._know(variant, recording)
        if recording.whole:
            variant.phase = VariantPhase.WHOLE
        else:
            self._choose(variant)

    def _know(self, variant: _Variant, recording: Recording) -> None:
        self._numbers.setdefault(recording, len(self._numbers))
        if variant.recording is not recording:
            variant.seen_realised.clear()
        variant.traces.clear()
        variant.doubted = None
        variant.recording, variant.following = recording, None
        variant.followed = recording.before_random
        if variant.followed:
            variant.following = Substitution(recording, NOTHING, variant.followed)

    def _follow(self, variant: _Variant, batch: Any, leaves: list[Any]) -> None:
        """Makes the random calls of a step draw what they would draw in a worker."""
        if variant.following is not None:
            verifier = Verifier(variant.following, leaves, Prepared(batch, -1, ()), seed=self._seed)
            self._conductor.begin(self, verifier, lambda _: self._finish(verifier))

    def _looks(self) -> bool:
        """Whether to inspect a batch: all at first, and once all variants are settled a few, to find new ones."""
        if (
            self._sample
            or self._batches < _EAGER_BATCHES
            or any(v.phase is VariantPhase.RECORDING for v in self._variants.values())
        ):
            return True
        return len(self._variants) < MAX_VARIANTS and self._batches % _LOOK_EVERY == 0

    def _best(self, graph: Graph) -> Cut:
        """The cut at the prices of this machine, which are measured only if a cut might pay at all."""
        if isinstance(self._priced, Prices):
            return self._chooser(graph, self._priced)
        cut = self._chooser(graph, _BEST_PRICES)
        return self._chooser(graph, self._priced()) if cut else cut

    def _settle_recorded(self, step_s: float) -> None:
        """Chooses cuts for the variants with enough recorded steps.

        Args:
            step_s: duration of the finished step, to the next request; its recording may end before (compiled code).
        """
        if not self._ended and step_s and self._batches <= SKIPPED_BATCHES:
            self._unwatched_s = min(self._unwatched_s, step_s)  # recording makes steps of many calls longer
        for trace in self._ended:
            trace.step_s = min(max(trace.step_s, step_s), self._unwatched_s)
        if self._ended:
            self._ended.clear()
            for variant in self._variants.values():
                if len(variant.traces) == 1:
                    self._guard(functools.partial(self._remember, variant))
                if len(variant.traces) >= RECORDED_STEPS:
                    self._guard(functools.partial(self._settle, variant))

    def _settle(self, variant: _Variant) -> None:
        """Chooses a cut from enough recorded steps."""
        earlier, doubted = variant.recording, variant.doubted
        recording = merge(variant.traces)
        if earlier is not None and doubted is not None and earlier.paths == recording.paths:  # the call changed
            self._know(variant, earlier)
            self._doubt(variant, doubted)
            return
        self._memory.keep(recording)
        self._know(variant, recording)
        self._choose(variant)

    def _revise(self, variant: _Variant) -> None:
        """Chooses a cut again after a finding about the calls."""
        assert variant.recording is not None
        variant.recording.revisions += 1
        self._choose(variant)

    def _doubt(self, variant: _Variant, number: int) -> None:
        """Marks a call that later steps do not make as recorded."""
        assert variant.recording is not None
        graph = variant.recording.graph
        graph.nodes[number].state = "later steps compute it differently, or not at all"
        spread_state(graph)
        self._revise(variant)

    def _record_again(self, variant: _Variant, doubted: int) -> None:
        """Records again: the program is in another phase, or one of its calls has changed."""
        variant.doubted, variant.phase, variant.plan = doubted, VariantPhase.RECORDING, None
        variant.traces.clear()
        self._send()

    def _choose(self, variant: _Variant) -> None:
        recording = variant.recording
        assert recording is not None
        cut = self._best(recording.graph)
        if not cut or recording.revisions > _MAX_REVISIONS:
            reason = _why_whole(recording.graph, cut) if not cut else "its steps differ too often from each other"
            earlier = variant.cut if recording.revisions and variant.cut is not None else cut
            self._keep_whole(variant, "reverted" if recording.revisions else "stayed", reason, cut=earlier)
            return
        self._plans += 1
        variant.cut = cut
        variant.substitution = Substitution(recording, cut, variant.followed)
        moved = sorted(cut.moved)
        steps = with_drops([step_of(recording.calls[k], recording.graph.values) for k in moved], cut.boundary)
        used = {leaf.payload for step in steps for leaf in _leaves_of(step) if leaf.form is Form.CONSTANT}
        constants = {number: tensor for number, tensor in enumerate(recording.constants) if number in used}
        variant.plan = StagePlan(self._plans, recording.signature, steps, constants, cut.boundary)
        variant.begin_comparing()
        self._send()

    def _keep_whole(
        self, variant: _Variant, outcome: Outcome, reason: str, gain: float = 0.0, *, cut: Cut | None = None
    ) -> None:
        """Returns its steps to the program and reports the cut, by default the one in force."""
        recording, cut = variant.recording, cut if cut is not None else variant.cut
        assert recording is not None
        assert cut is not None
        variant.phase, variant.plan, variant.substitution = VariantPhase.WHOLE, None, None
        recording.whole = True
        self._send()
        self._tell(recording, cut, outcome, reason, gain)

    def _send(self) -> None:
        """Sends the current plans to the workers."""
        plans = [v.plan for v in self._variants.values() if v.plan is not None]
        off = self._memory.trial is not None and self._memory.trial.arm is Arm.OFF
        self._ship(pickle.dumps(Stage(plans), 5) if plans and not off else b"")

    # -- substituting ------------------------------------------------------------------------------------------------

    def _substitute(self, prepared: Prepared) -> None:
        variant = next(
            (v for v in self._variants.values() if v.plan is not None and v.plan.variant == prepared.variant), None
        )
        if variant is not None and prepared.failure:
            self._keep_whole(variant, "reverted", f"a data worker could not make its calls ({prepared.failure})")
        leaves = leaves_of(prepared.batch)
        signature = signature_of(leaves)
        if variant is None or variant.substitution is None or signature != variant.substitution.recording.signature:
            known = self._variants.get(signature)  # prepared for a plan that is no longer used
            if known is not None:
                self._follow(known, prepared.batch, leaves)
            return
        comparing = variant.phase is VariantPhase.COMPARING
        verifier = Verifier(variant.substitution, leaves, prepared, comparing=comparing, seed=self._seed)

        def end(compiled: bool) -> None:
            self._finish(verifier)
            self._saw(used=verifier.began)
            if verifier.began and variant.substitution is verifier.substitution:
                self._guard(lambda: self._judge(variant, verifier), verifier.error)

        self._conductor.begin(self, verifier, end)

    def _judge(self, variant: _Variant, verifier: Verifier) -> None:
        """Evaluates a step on a prepared batch."""
        assert variant.recording is not None
        graph = variant.recording.graph
        found = variant.on_step(
            verifier.differing, verifier.missed, verifier.realised, graph.kept, complete=verifier.complete,
            may_record=len(self._numbers) < MAX_VARIANTS,
        )  # fmt: skip
        match found:
            case (Shown.DIFFERS, values):
                for value in values:
                    node = graph.producer(value)
                    assert node is not None
                    node.state = "its result in a data worker differs from the one in the training process"
                spread_state(graph)
                self._revise(variant)
            case (Shown.NEEDED, values):
                graph.kept.update(dict.fromkeys(values, "is used in a way that was not recorded"))
                self._revise(variant)
            case (Shown.OTHER_PHASE, (number,)):
                self._record_again(variant, number)
            case (Shown.DOUBTED, (number,)):
                self._doubt(variant, number)
            case (Shown.PROVEN, _):
                self._start_trial()
            case _:
                pass

    # -- the trial ---------------------------------------------------------------------------------------------------

    def _start_trial(self) -> None:
        if not self._tried:
            self._conclude(None)
        elif self._memory.passed is not None:
            self._say_moved(*self._memory.passed)
        else:
            self._say_moved("on trial: steps alternate with and without it", 0.0)
            self._memory.trial = self._memory.trial or CutTrial()

    def _weigh(self, now: float) -> None:
        """A step of the trial is over."""
        trial = self._memory.trial
        assert trial is not None
        if trial.verdict is not None:
            return
        arm = trial.arm
        trial.add(self._label, now)
        if trial.verdict is not None:
            self._conclude(trial.verdict)
        elif trial.arm is not arm:
            self._send()

    def _conclude(self, gain: float | None) -> None:
        """The trial is over (None: there was none)."""
        self._memory.trial = None
        if gain is None:
            self._say_moved("kept without a trial", 0.0)
        elif gain >= CutTrial.LEAST_GAIN:
            self._memory.passed = f"steps take {1 - gain:.2f} times as long with it", gain
            self._say_moved(*self._memory.passed)
        else:
            reason = f"steps took {1 - gain:.2f} times as long with it"
            for variant in self._moved():
                self._keep_whole(variant, "reverted", reason, gain)
        self._send()

    def _moved(self) -> list[_Variant]:
        return [v for v in self._variants.values() if v.phase is VariantPhase.ON]

    def _say_moved(self, reason: str, gain: float) -> None:
        for variant in self._moved():
            recording, cut = variant.recording, variant.cut
            assert recording is not None
            assert cut is not None
            self._tell(recording, cut, "moved", reason, gain)

    def _tell(self, recording: Recording, cut: Cut, outcome: Outcome, reason: str, gain: float) -> None:
        number = self._numbers[recording]
        self._report(
            CutVerdict(variant=number, recording=recording, cut=cut, outcome=outcome, reason=reason, gain=gain)
        )


def _why_whole(graph: Graph, cut: Cut) -> str:
    stateless = [node for node in graph.nodes if not node.state]
    if not stateless:
        return "no call depends on the batch alone"
    seconds = sum(node.seconds for node in stateless)
    calls = format_count(len(stateless), "call")
    share = f" of its {format_seconds(graph.step_s)}" if graph.step_s else ""
    why = "data workers have no spare time" if NO_TIME in cut.stayed.values() else "sending it costs more"
    return f"what depends on the batch alone ({calls}) takes {format_seconds(seconds)}{share}: {why}"


def _leaves_of(step: PlannedCall) -> Iterator[Argument]:
    for tree in (*step.arguments, *(tree for _, tree in step.keywords)):
        yield from tree.leaves()


def measure_bandwidth() -> float:
    """Bytes a second that one core copies from and to memory that no cache holds, as batches go through slots."""
    source = np.ones(_PROBE_BYTES, np.uint8)  # not torch's copy, which takes all cores and hangs in a forked child
    target = np.empty_like(source)
    np.copyto(target, source)  # makes the kernel allocate the target's pages
    begun = time.perf_counter()
    np.copyto(target, source)
    return source.nbytes / (time.perf_counter() - begun)
