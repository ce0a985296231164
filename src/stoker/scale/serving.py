"""Which requests a service takes, and which go together in a batch: no windows, costs as measured, deadlines kept.

An idle engine starts at once with what waits; waiting for more never paid (a batch grows by itself while engines are
busy). A request is refused on arrival if its predicted end is later than a margin of its time, and dropped when an
engine would take it if it cannot make it any more: without either, a queue under overload answers everything late.
The measured costs are a belief; a running ratio of times taken to times predicted corrects it, and the size of batches
follows. What that ratio does not explain is noise: a request is dropped unless there is time for it as well, and for
its answer to be written behind its batch. How much time for noise is learned from how many answers are late; and where
no other request would take its place, one that will make it by the mean runs: an empty place is lost for certain.

Source: the rules and figures of "Serving" in docs/design/serve.md, from simulations and from measurements.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from stoker.serve.policy import ChosenBatch, QueuedRequest

_RECENT = 0.1
"""Share of the latest batch in the running ratio: noise of 0.2 becomes 0.05, a change is seen within twenty batches."""
_RATIO_BOUNDS = (0.2, 5.0)
_RESIZE_FRAC = 0.1
"""Change of the ratio after which the size of batches is chosen again."""
_MOST_NOISE, _LEAST_SPREAD = 1.0, 0.03
"""Share of a batch's time that noise may take: two batches fit, so an idle engine drops nothing for noise alone that
has just come. And the least mean deviation: what comes before the queue is not seen by it."""
_LATE_FRAC, _CAUTION_BY, _CAUTION_BOUNDS, _STRICT = 0.005, 1.0, (1.0, 4.0), 3.5
"""Share of answers that may be late, how caution follows a batch of which more are, and between what; 3 mean deviations
are 2.4 standard ones of a normal distribution. Above the last, what may be late does not run even in an empty place."""
_MOST_WAY_FRAC = 0.25
"""Share of the time to answer that the way of a batch is believed to take at most, and the writing of answers too."""
_PROBE_S = 1.0
"""If nothing was measured for so long, or for the time to answer where that is shorter, a request runs although it is
believed to be late: a belief must heal, and engines of a machine that is far too busy must not rest as well."""
_SCAN = 4
"""Per sample of a batch, how many waiting requests are looked at for some of the same kind."""

_Entry = tuple[int, float, int, QueuedRequest]
"""A request that waits, behind what it is sorted by: priority, deadline and number."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds that an engine takes for a batch, by its samples; straight between measured points and beyond them.

    Args:
        points: (samples, seconds), at least one; sorted and made monotone here, since a larger batch is never cheaper.
    """

    points: tuple[tuple[int, float], ...]
    _known: dict[int, float] = field(default_factory=dict[int, float], init=False, compare=False, repr=False)
    """By samples: it is asked three times for each request."""

    def __post_init__(self) -> None:
        if not self.points or any(samples < 1 or not 0.0 < seconds < math.inf for samples, seconds in self.points):
            raise ValueError(f"`points` must be pairs of at least 1 sample and positive seconds, got {self.points}")
        ordered = sorted(dict(self.points).items())
        rising = itertools.accumulate((seconds for _, seconds in ordered), max)
        object.__setattr__(self, "points", tuple(zip((samples for samples, _ in ordered), rising, strict=True)))

    def seconds(self, samples: int) -> float:
        """What a batch takes."""
        found = self._known.get(samples)
        if found is None:
            found = self._known[samples] = self._between(samples)
        return found

    def _between(self, samples: int) -> float:
        points = self.points
        if len(points) == 1:
            return points[0][1] * max(1.0, samples / points[0][0])
        at = min(max(bisect.bisect_left(points, (samples, -math.inf)), 1), len(points) - 1)
        (low, low_s), (high, high_s) = points[at - 1 : at + 1]
        return max(low_s + (high_s - low_s) * (samples - low) / (high - low), min(low_s, points[0][1]))


@dataclass(frozen=True, kw_only=True)
class ServingRules:
    """What requests are promised.

    Attributes:
        slo_s: time from a request's arrival to its answer; infinite for no promise.
        max_batch: most samples that run together.
        max_waiting: most requests that wait; bounds memory where nothing is promised.
        margin_frac: of the time that a request may be predicted to take when it is taken.
    """

    slo_s: float = math.inf
    max_batch: int = 32
    max_waiting: int = 1024
    margin_frac: float = 0.8

    def __post_init__(self) -> None:
        if not self.slo_s > 0.0:
            raise ValueError(f"`slo_s` must be positive, got {self.slo_s}")
        for name in ("max_batch", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if not 0.0 < self.margin_frac <= 1.0:
            raise ValueError(f"`margin_frac` must be above 0 and at most 1, got {self.margin_frac}")


class ServingQueue:
    """The queue before the engines of one version of a model (a ``BatchPolicy`` of ``stoker.serve``).

    Args:
        rules: what is promised.
        curve: costs of batches, as measured when the engines started.
        engines: that there are.
    """

    def __init__(self, rules: ServingRules, curve: CostCurve, engines: int = 1) -> None:
        self.rules = rules
        self.curve = curve
        self.ratio = 1.0
        """Seconds that engines compute batches over those predicted from the curve."""
        self.handover_s = 0.0
        """Seconds of a batch on the way to its engine and back, whatever its size."""
        self.batch = rules.max_batch
        """Most samples that run together: the most efficient number that leaves time for two batches."""
        self._batch_s = 0.0
        """What that was expected to take when it was chosen."""
        self._resize()
        self.spread = 0.0
        """Mean deviation of a batch's time from the expected one, as a share of it."""
        self.caution = 3.0
        """Mean deviations that must fit before a deadline, learned from how many answers are late."""
        self.after_s = 0.0
        """Seconds from the end of a batch until its answers are written."""
        self._engines = engines
        self._heap: list[_Entry] = []
        self._again: list[QueuedRequest] = []
        self._cancelled: set[int] = set()
        self._waiting: dict[int, int] = {}
        self._samples_by_priority: dict[int, int] = {}
        self._running: dict[int, tuple[float, float]] = {}
        self._numbers = itertools.count()
        self._usual_samples = 1.0
        self._measured_s = -math.inf
        self._most_way_s = _MOST_WAY_FRAC * rules.slo_s
        self._probe_s = min(rules.slo_s, _PROBE_S)

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def waiting_samples(self) -> int:
        """Samples of these."""
        return sum(self._waiting.values())

    @property
    def is_full(self) -> bool:
        """Whether those that wait fill a batch: more would not make it larger."""
        return self.waiting_samples >= self.batch

    def set_engines(self, count: int) -> None:
        """Tells how many engines there are."""
        self._engines = count

    def predicted_s(self, now_s: float, priority: int) -> float:
        """Seconds until a request that arrives now would be answered, if engines do as believed."""
        if not self._engines:
            return math.inf
        ahead = sum(samples for other, samples in self._samples_by_priority.items() if other <= priority)
        # Batches before it, then its own, with the rest of what waits.
        batches = max(0, math.ceil((ahead + self._usual_samples) / self.batch) - 1)
        rest = ahead + self._usual_samples - batches * self.batch
        full_s = self._expected_s(self.batch)
        own_s = self._expected_s(max(1, math.ceil(rest)))
        busy = sorted([self.left_s(now_s, batch) for batch in self._running])
        # When the last of `batches + 1` starts, each engine taking one when it becomes idle; an engine with two batches
        # counts with the later one.
        ready = ([0.0] * self._engines + busy)[-self._engines :]
        rounds, place = divmod(batches, len(ready))
        return ready[place] + rounds * full_s + own_s + self.after_s

    def refusal_s(self, now_s: float, priority: int) -> float | None:
        """None if a request that arrives now can be answered in time; else in how many seconds it is worth a try."""
        over = len(self._waiting) >= self.rules.max_waiting
        if self.rules.slo_s == math.inf:
            return self._expected_s(self.batch) if over else None
        predicted_s, allowed_s = self.predicted_s(now_s, priority), self.rules.margin_frac * self.rules.slo_s
        if predicted_s <= allowed_s and not over:
            return None
        # An empty service must not refuse for ever because its belief is off: someone has to be measured.
        if not self._running and not self._waiting and self._engines:
            return None
        return min(max(predicted_s - allowed_s, self._expected_s(1)), 60.0)

    def arrive(self, request: QueuedRequest) -> None:
        """Adds a request to those that wait."""
        heapq.heappush(self._heap, (request.priority, request.deadline_s, request.number, request))
        self._enter(request)
        self._usual_samples += _RECENT * (request.samples - self._usual_samples)

    def requeue(self, requests: Sequence[QueuedRequest]) -> None:
        """Puts requests whose engine was lost back in front; they are not dropped, and each runs alone.

        One of them may be what ended the engine.
        """
        self._again += requests
        for each in requests:
            self._enter(each)

    def cancel(self, number: int) -> None:
        """Takes a request out, if it waits."""
        if number in self._waiting:
            self._cancelled.add(number)

    def next_batch(self, now_s: float, wait_s: float | None = None) -> ChosenBatch | None:
        """What an engine is to do that is idle, or that computes and should be idle in ``wait_s``; None for nothing.

        One that computes, though it is late and ``wait_s`` 0, gets no batch with empty places that is all that waits.
        """
        while self._again:
            first = self._again.pop(0)
            self._leave(first)
            if not self._was_cancelled(first):
                return ChosenBatch([first], self._expected_s(first.samples), [])
        dropped: list[int] = []
        chosen: list[_Entry] = []
        others: list[_Entry] = []
        late: QueuedRequest | None = None
        kind: Hashable = 0
        samples = 0
        left_s = wait_s or 0.0
        likely = min(self.batch, max(self.waiting_samples, 1))
        # What just makes it by the mean is late half of the time.
        noise = min(self.caution * max(self.spread, _LEAST_SPREAD), _MOST_NOISE)

        def latest_s(samples: int) -> float:
            """When a batch will be answered, nearly always; the noise of the one before it is its own."""
            took_s = self._expected_s(samples)
            return now_s + left_s + took_s + noise * math.hypot(left_s, took_s) + self.after_s

        usual_s = latest_s(likely)
        mean_s = now_s + left_s + self._expected_s(likely) + self.after_s
        # Of what may be late, only as much goes as others can take the place of.
        spare = self.waiting_samples - self.batch if self.caution < _STRICT else math.inf
        while self._heap and samples < self.batch and len(others) < _SCAN * self.batch:
            entry = heapq.heappop(self._heap)
            request = entry[3]
            if self._was_cancelled(request):
                self._leave(request)
            elif (
                request.deadline_s < mean_s
                or (request.deadline_s < usual_s and spare > 0)
                or (request.samples > likely and request.deadline_s < latest_s(request.samples))
            ):
                self._leave(request)
                spare -= request.samples
                dropped.append(request.number)
                late = request
            elif chosen and (request.kind is None or request.kind != kind or samples + request.samples > self.batch):
                others.append(entry)
                if request.kind == kind:
                    break  # in order: a smaller one does not overtake
            else:
                chosen.append(entry)
                samples += request.samples
                kind = request.kind
                if kind is None:
                    break
        if wait_s is not None and samples < self.batch and kind is not None and not self._heap and not others:
            # It can become larger until its engine is idle. With others of another kind behind it, it goes: few kinds
            # fill a batch, and the engine would wait for each.
            others, chosen = chosen, []
        for entry in others:
            heapq.heappush(self._heap, entry)
        requests = [entry[3] for entry in chosen]
        for request in requests:
            self._leave(request)
        if not requests and not dropped:
            return None
        if late and not requests and not self._running and now_s - self._measured_s > self._probe_s:
            requests, samples = [late], late.samples
            dropped.remove(late.number)
            self._measured_s = now_s
        return ChosenBatch(requests, self._expected_s(samples) if requests else 0.0, dropped)

    def left_s(self, now_s: float, batch: int) -> float:
        """How long a batch that began should still take."""
        begun_s, expected_s = self._running[batch]
        return max(0.0, begun_s + expected_s - now_s)

    def begins(self, now_s: float, batch: int) -> None:
        """Notes that a batch begins now that was given to an engine beforehand."""
        self._running[batch] = now_s, self._running[batch][1]

    def started(self, now_s: float, expected_s: float) -> int:
        """Notes that a batch began, or will; returns its number."""
        number = next(self._numbers)
        self._running[number] = now_s, expected_s
        return number

    def ended(
        self, now_s: float, batch: int, samples: int, took_s: float | None, handover_s: float = 0.0
    ) -> None:  # fmt: skip
        """Notes that a batch ended, as the protocol has it; an engine that was lost says nothing about its cost."""
        del self._running[batch]
        if took_s is None:
            return
        low, high = _RATIO_BOUNDS
        ratio = min(max(took_s / self.curve.seconds(samples), low), high)
        handover_s = min(handover_s, self._most_way_s)
        off_s = self.curve.seconds(samples) * ratio + handover_s - self._expected_s(samples)
        self.spread += _RECENT * (abs(off_s) / self._expected_s(samples) - self.spread)
        self.ratio += _RECENT * (ratio - self.ratio)
        self.handover_s += _RECENT * (handover_s - self.handover_s)
        self._measured_s = now_s
        if abs(self._expected_s(self.batch) / self._batch_s - 1.0) > _RESIZE_FRAC:
            self._resize()

    def answered(self, after_s: float, late_frac: float) -> None:
        """Notes how long after the end of a batch its answers were written, and what share of them was late."""
        low, high = _CAUTION_BOUNDS
        self.caution = min(max(self.caution + _CAUTION_BY * (late_frac - _LATE_FRAC), low), high)
        # At most a share of the time: what stops the whole service once says nothing of the next batch.
        self.after_s += _RECENT * (min(after_s, self._most_way_s) - self.after_s)

    def _resize(self) -> None:
        # A request may come right after a batch began: it waits for that one, and then for its own.
        limit_s = self.rules.margin_frac * self.rules.slo_s / 2
        most = self.rules.max_batch
        if math.isfinite(limit_s):
            sizes = [size for size in range(1, most + 1) if self._expected_s(size) <= limit_s]
            self.batch = max(sizes, key=lambda size: size / self._expected_s(size), default=1)
        self._batch_s = self._expected_s(self.batch)

    def _expected_s(self, samples: int) -> float:
        return self.curve.seconds(samples) * self.ratio + self.handover_s

    def _enter(self, request: QueuedRequest) -> None:
        self._waiting[request.number] = request.samples
        known = self._samples_by_priority.get(request.priority, 0)
        self._samples_by_priority[request.priority] = known + request.samples

    def _leave(self, request: QueuedRequest) -> None:
        del self._waiting[request.number]
        self._samples_by_priority[request.priority] -= request.samples

    def _was_cancelled(self, request: QueuedRequest) -> bool:
        if self._cancelled and request.number in self._cancelled:
            self._cancelled.remove(request.number)
            return True
        return False
