"""Predicts a step from its features: on one GPU by the calibrated terms, then spread over many."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stoker.perf.calibration.fitting import Calibration
from stoker.perf.catalogue import Gpu, gpu
from stoker.perf.communication.methods import RankSpeed
from stoker.perf.communication.step_on_cluster import Spread, refusal, spread
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.records import Operation, StepFeatures
from stoker.perf.prediction.anchor import CPU, Anchor
from stoker.perf.prediction.anchoring import CARRIED, CARRIED_UNTIMED, OWN, anchored
from stoker.perf.prediction.calibrated import calibration, columns
from stoker.perf.prediction.intervals import distance_of, interval
from stoker.perf.prediction.prediction import Prediction, Tier, refused
from stoker.perf.prediction.rank import Rank, without
from stoker.perf.prediction.terms import Stack, unit_times
from stoker.perf.prediction.work_vector import AMOUNTS, Array, work_of
from stoker.perf.strategy import Machines, Strategy

_UNKNOWN = 0.05
"""Share of a step's bytes that operations without a formula may have before the step is refused."""
_HALVINGS = 40
_KEPT = 32
"""Programs that a predictor caches; a planner predicts one, in at most this many batch sizes."""


def predict(
    features: StepFeatures,
    machines: Machines,
    strategy: Strategy | None = None,
    *,
    precision: str | None = None,
    stack: Stack | None = None,
    anchor: Anchor | None = None,
    share: float = 0.9,
) -> Prediction:
    """Predicts one optimizer step of a program.

    For many predictions of it, keep a :class:`Predictor`.

    Args:
        features: of its step on one GPU, traced for CUDA.
        machines: to run on.
        strategy: to spread it; plain data parallelism by default. Each replica computes the features' batch, in their
            micro-batches, ``accumulation`` times; then gradients are exchanged and the optimizer steps, once.
        precision: of products, as the catalogue calls it; by default 16-bit ones as the program has them, and the rest
            in TF32 where the GPU has it. ``fp32`` keeps TF32 off.
        stack: what runs it; by default as traced: compiled, with images channels last, or neither.
        anchor: a measured step of the same program, with its own features or else the given ones. For several GPUs the
            exchange is subtracted, as measured or else as for plain replicas in servers of eight. A step on a CPU says
            nothing about a GPU.
        share: of such predictions whose measurement lies in the interval: 0.5, 0.8, 0.9 or 0.95.

    Raises:
        ValueError: the anchor is a step of another program.
    """
    predictor = Predictor(anchor=anchor)
    return predictor.predict(features, machines, strategy, precision=precision, stack=stack, share=share)


class Predictor:
    """Predicts steps by one calibration, and caches shared results: a planner needs thousands of predictions.

    Args:
        used: the calibration; by default the package's, which the intervals belong to.
        anchor: a measured step of the predicted program, as in :func:`predict`.
    """

    def __init__(self, used: Calibration | None = None, *, anchor: Anchor | None = None) -> None:
        self._unmoved = _Used.unmoved(used or calibration())
        self._anchor = anchor
        self._programs: OrderedDict[int, _Program] = OrderedDict()

    def predict(
        self,
        features: StepFeatures,
        machines: Machines,
        strategy: Strategy | None = None,
        *,
        precision: str | None = None,
        stack: Stack | None = None,
        share: float = 0.9,
    ) -> Prediction:
        """One optimizer step of a program; arguments and errors as of :func:`predict`."""
        strategy = strategy or Strategy()
        card = machines.gpu
        reason = _refusal(features, card, precision) or refusal(features, machines, strategy)
        if reason:
            return refused(reason)
        program = self._program(features)
        used, unmoved = self._moved(program, card, stack)
        stack = stack or program.stack
        precision = precision or program.precision(card)
        alone = program.alone(card, precision, stack, used)
        strategy = replace(strategy, accumulation=strategy.accumulation * features.micro_batches)
        times = alone.times(strategy.accumulation, divided=strategy.tensor > 1)
        exchanged = "bf16" if precision == "fp8" else precision
        speed = _speed(program, unit_times(card, precision, stack) * used.calibration.coefficients)
        spreading = spread(times, program.micro_batch, machines, strategy, precision=exchanged, speed=speed)
        distance = "specification" if precision == "fp8" else distance_of(card)
        below, above = interval(distance, anchored=used.beside is not None, share=share, doubt=alone.doubt)
        tier: Tier = "extrapolated" if distance == "specification" or spreading.unvalidated else "calibrated"
        reasons = _reasons(features, card, precision, self._anchor, unmoved)
        return Prediction(
            seconds=spreading.step_s,
            low=spreading.low * below,
            high=spreading.high * above,
            tier=tier,
            parts=_parts(alone, spreading, strategy.accumulation),
            share=share,
            hidden_s=spreading.hidden_s,
            reasons=(*reasons, *_unvalidated(spreading), *spreading.notes),
        )

    def rank(self, features: StepFeatures, card: Gpu, *, precision: str | None = None) -> Rank:
        """One GPU of many that compute the features' step: its times, and those of products that a plan may add."""
        alone = self.predict(features, Machines(gpu=card), precision=precision)
        if alone.tier == "refused":
            return without(alone.reasons)
        program = self._program(features)
        used, _ = self._moved(program, card, None)
        precision = precision or program.precision(card)
        times = program.alone(card, precision, program.stack, used).times(features.micro_batches, divided=False)
        speed = _speed(program, unit_times(card, precision, program.stack) * used.calibration.coefficients)
        return Rank(
            times=times, speed=speed, below=alone.low / alone.seconds, above=alone.high / alone.seconds,
            tier=alone.tier, reasons=alone.reasons, share=alone.share,
        )  # fmt: skip

    @functools.cached_property
    def _measured(self) -> _Program | None:
        """Features of the measured step; None to use those of the predicted step."""
        return _Program(self._anchor.features) if self._anchor and self._anchor.features else None

    def _program(self, features: StepFeatures) -> _Program:
        """The cached results for features; keeps the features alive, so that their identity stays unique."""
        found = self._programs.get(id(features))
        if found is None:
            found = self._programs[id(features)] = _Program(features)
            if len(self._programs) > _KEPT:
                self._programs.popitem(last=False)
        return found

    def _moved(self, program: _Program, card: Gpu, stack: Stack | None) -> tuple[_Used, str | None]:
        """The calibration, and why a measured step has not moved it: empty if it has, None if there is no such step."""
        anchor = self._anchor
        if anchor is None:
            return self._unmoved, None
        anchor.check(program.features)
        if anchor.gpu == CPU:
            return self._unmoved, "the measured step ran on a CPU, which says nothing about a GPU: not used"
        measured = self._measured or program
        carried = 1.0 if card.name == anchor.gpu else CARRIED if anchor.own_s is not None else CARRIED_UNTIMED
        key = carried, stack or measured.stack
        if key not in measured.moved:
            measured.moved[key] = _move(measured, anchor, *key, self._unmoved)
        moved = measured.moved[key]
        if moved is None:
            return self._unmoved, "the measured step waited for input and exchange most of its time: not used"
        return moved, ""


def _refusal(features: StepFeatures, card: Gpu, precision: str | None) -> str:
    if precision is not None and precision not in card.rates:
        return f"{card.name} has no {precision}; it has {', '.join(card.rates)}"
    unknown = sum(each.bytes for each in features.unknown)
    if unknown > _UNKNOWN * features.eager_bytes:
        names = ", ".join(f"{each.name} ({each.where})" for each in features.unknown[:3])
        return f"operations without a formula move {unknown / features.eager_bytes:.0%} of the step's bytes: {names}"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class _Used:
    """A calibration for one program; compares by identity, so that it can be a cache key.

    Attributes:
        calibration: adjusted by a measured step, if any.
        known: as fitted to the measurements, with its covariance.
        beside: the measured step: shape (terms,), in seconds at the vendors' rates.
    """

    calibration: Calibration
    known: Calibration
    beside: Array | None = None

    @classmethod
    def unmoved(cls, known: Calibration) -> _Used:
        """The coefficients as they are without a measured step."""
        return cls(known, known)

    def doubt(self, at_spec: Array) -> float:
        """How little the measurements show about what a step consists of, on one GPU."""
        return float(self.known.doubts(at_spec[None], None if self.beside is None else self.beside[None])[0])


class _Program:
    """Features of a step, and shared results of its predictions on all GPUs.

    Attributes:
        works: per operation, shape (operations, amounts).
        stack: as traced.
        dtype: of most FLOPs.
        moved: calibrations adjusted by this measured step, by carried share and stack; None if the GPU's own work was
            too little of the step.
    """

    def __init__(self, features: StepFeatures) -> None:
        self.features = features
        self.works: Array = np.array([work_of([operation]) for operation in features.operations])
        self.micro_batch = features.one_micro_batch()
        self.stack = Stack(compiled=features.compiled, channels_last=features.channels_last)
        self.moved: dict[tuple[float, Stack], _Used | None] = {}
        self._alone: dict[tuple[str, str, Stack, _Used], _Alone] = {}
        self.dtype = _widest(features)

    def precision(self, card: Gpu) -> str:
        """What most products of the program become on a GPU."""
        wanted = {"float16": "fp16", "bfloat16": "bf16"}.get(self.dtype, "tf32")
        return wanted if wanted in card.rates else "fp16" if wanted == "bf16" and "fp16" in card.rates else "fp32"

    def alone(self, card: Gpu, precision: str, stack: Stack, used: _Used) -> _Alone:
        """Its step on one GPU; computed once."""
        key = card.name, precision, stack, used
        if key not in self._alone:
            self._alone[key] = _worked_out(self, unit_times(card, precision, stack), used)
        return self._alone[key]


def _speed(program: _Program, seconds: Array) -> RankSpeed:
    """Further work of a GPU, launches as well: after the backward pass nothing hides them."""
    unit_s = seconds.sum(axis=1)
    return RankSpeed(_products(program.dtype, unit_s), float(unit_s[AMOUNTS.index("fused bytes")]))


def _products(dtype: str, unit_s: Array) -> Callable[[int, int, int], float]:
    """Seconds of a product of sizes m, n, k, from those of one unit of each amount of work."""
    width = 2 if dtype in ("float16", "bfloat16") else 4

    def seconds(m: int, n: int, k: int) -> float:
        moved = float(width * (m * n + m * k + n * k))
        product = Operation(
            name="mm", kind="matmul", phase="backward", dtype=dtype, dims=(1, m, n, k), module="", count=1,
            flops=2.0 * m * n * k, eager_bytes=moved, fused_bytes=moved, fused_count=1,
        )  # fmt: skip
        return float(work_of([product]) @ unit_s)

    return seconds


def _widest(features: StepFeatures) -> str:
    """The precision of most FLOPs."""
    widths = {"float16": 0.0, "bfloat16": 0.0, "float32": 0.0}
    for operation in features.operations:
        name = operation.dtype.removeprefix("torch.")
        widths[name] = widths.get(name, 0.0) + operation.flops
    return max(widths, key=lambda name: widths[name])


def _move(measured: _Program, anchor: Anchor, carried: float, stack: Stack, used: _Used) -> _Used | None:
    """The calibration as moved by a measured step; None if the GPU's own work was too small a share of it."""
    card = gpu(anchor.gpu)
    precision = anchor.precision if anchor.precision in card.rates else measured.precision(card)
    at_spec = work_of(measured.features.operations) @ unit_times(card, precision, stack)
    own_s = anchor.own_s
    if own_s is None:
        own_s = _own_s(measured, anchor, precision, stack, used)
    if own_s < OWN * anchor.seconds:
        return None
    return _Used(anchored(used.calibration, at_spec, own_s, carried), used.known, at_spec)


def _own_s(measured: _Program, anchor: Anchor, precision: str, stack: Stack, used: _Used) -> float:
    """Time that a GPU computes in a measured step on several: the value at which the predicted step matches."""
    machines = Machines(gpu=gpu(anchor.gpu), gpus=anchor.gpus)
    strategy = Strategy(accumulation=measured.features.micro_batches)
    alone = measured.alone(machines.gpu, precision, stack, used)
    times = alone.times(strategy.accumulation, divided=False)
    low, high = 0.0, anchor.seconds / _alone_s(times, strategy.accumulation)
    for _ in range(_HALVINGS):
        factor = (low + high) / 2
        found = spread(times.scaled(factor), measured.micro_batch, machines, strategy, precision=precision)
        low, high = (factor, high) if found.step_s < anchor.seconds else (low, factor)
    return high * _alone_s(times, strategy.accumulation)


def _alone_s(times: PassTimes, accumulation: int) -> float:
    """A step on one GPU."""
    return times.compute_s * accumulation + times.optimizer_s


@dataclass(frozen=True, slots=True)
class _Alone:
    """One micro-batch and one optimizer step on one GPU.

    Attributes:
        device: times of the GPU, by layer, and of the optimizer.
        host_s: the host's launches for the micro-batch, and for the optimizer.
        parts: seconds of the GPU by part for the micro-batch; they sum to the device's.
        doubt: uncertainty of the step: :meth:`~stoker.perf.calibration.fitting.Calibration.doubts`.
    """

    device: PassTimes
    host_s: tuple[float, float]
    parts: dict[str, float]
    doubt: float

    def stretch(self, accumulation: int) -> float:
        """How much longer the passes take than the device's time: they bear all that the step waits for the host.

        The optimizer's time stays that of the device, since a GPU with a share of the weights launches as much.
        """
        passes = self.device.compute_s * accumulation
        host = self.host_s[0] * accumulation + self.host_s[1]
        whole = float(np.hypot(passes + self.device.optimizer_s, host))
        return (whole - self.device.optimizer_s) / passes if passes else 1.0

    def times(self, accumulation: int, *, divided: bool) -> PassTimes:
        """The device's times, including the GPU's waits for the host.

        Args:
            accumulation: micro-batches of a step.
            divided: whether GPUs share products, each with as many launches for less work.
        """
        if divided:
            return replace(self.device, host_s=self.host_s[0] + self.host_s[1] / accumulation)
        stretched = self.device.scaled(self.stretch(accumulation))
        return replace(stretched, optimizer_s=self.device.optimizer_s)


def _worked_out(program: _Program, unit_s: Array, used: _Used) -> _Alone:
    features, units = program.features, unit_s * used.calibration.coefficients
    is_host = np.array([term.lane == "host" for term in used.calibration.terms])
    by_term: Array = program.works @ units
    on_device = by_term[:, ~is_host].sum(axis=1)
    seconds = dict(zip(map(id, features.operations), on_device.tolist(), strict=True))
    whole, times = PassTimes.of(features, lambda operation: seconds[id(operation)]), features.micro_batches
    device = replace(whole.scaled(1 / times), optimizer_s=whole.optimizer_s)
    is_step = np.array([operation.phase == "optimizer" for operation in features.operations])
    host = by_term[:, is_host].sum(axis=1)
    sums = {name: float((by_term[~is_step] @ columns(name)).sum()) for name in ("compute", "memory")}
    scale = device.compute_s / (sum(sums.values()) or 1.0)
    parts = {name: value * scale for name, value in sums.items()}
    host_s = float(host[~is_step].sum()) / times, float(host[is_step].sum())
    return _Alone(device, host_s, parts, used.doubt(program.works.sum(axis=0) @ unit_s))


def _parts(alone: _Alone, spreading: Spread, accumulation: int) -> dict[str, float]:
    """Seconds of the step by name."""
    computing = spreading.compute_s / alone.stretch(accumulation)
    whole = alone.device.compute_s or 1.0
    return {
        **{name: value * computing / whole for name, value in alone.parts.items()},
        "host": spreading.compute_s - computing,
        "communication": spreading.exposed_s,
        "optimizer": spreading.optimizer_s,
        "other": spreading.bubble_s + spreading.waiting_s,
    }


def _reasons(
    features: StepFeatures, card: Gpu, precision: str, anchor: Anchor | None, unmoved: str | None
) -> tuple[str, ...]:
    found: list[str] = []
    if precision == "fp8":
        found.append("no step in FP8 is among the measurements: rates of the data sheet, as efficient as 16 bits")
    distance = distance_of(card)
    if distance == "generation":
        found.append(f"no step on {card.name} is among the measurements, only on others of its generation")
    elif distance == "specification":
        found.append(f"no step on any {card.generation} GPU is among the measurements: its data sheet is all there is")
    if features.unknown:
        found.append(f"{', '.join(each.name for each in features.unknown)}: without a formula, not counted")
    if unmoved:
        found.append(unmoved)
    elif anchor is not None and anchor.own_s is None:
        found.append(
            f"the exchange of the measured step on {anchor.gpus} GPUs was not timed: taken for plain replicas'"
        )
    return tuple(found)


def _unvalidated(spreading: Spread) -> tuple[str, ...]:
    return tuple(f"unvalidated: {name}" for name in spreading.unvalidated)
