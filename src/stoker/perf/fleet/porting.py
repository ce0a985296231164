"""Which jobs gain from another architecture: how many, how much, which do not, and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.perf.equations import Architecture, FloatArray, Overlap, breakdown, port
from stoker.perf.fleet.jobs import Fleet, take
from stoker.perf.fleet.shares import step_s
from stoker.perf.hardware import Hardware
from stoker.records.fleet import OUTCOMES, Distribution, Port, PortedJob

PORTS = (
    (Architecture.PS_WORKER, Architecture.ALLREDUCE_LOCAL),
    (Architecture.PS_WORKER, Architecture.ALLREDUCE_CLUSTER),
    (Architecture.PS_WORKER, Architecture.PEARL),
    (Architecture.ONE_SERVER, Architecture.ALLREDUCE_LOCAL),
)
"""Pairs of architectures; those of PS/Worker are the study's."""
_EDGES = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 8.0, 16.0)
BIN_NAMES = ("< 0.5", "0.5-0.9", "0.9-1", "1-1.1", "1.1-1.5", "1.5-2", "2-4", "4-8", "8-16", "≥ 16")
_EXAMPLES = 5
_NO_CHANGE = 1e-9
"""Relative gain below which a job is as fast as before."""


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """The outcome of each ported job."""

    place: NDArray[np.intp]
    """Place of the job in the fleet."""
    before: FloatArray
    """GPUs."""
    after: FloatArray
    per_gpu: FloatArray
    whole: FloatArray
    outcome: NDArray[np.intp]
    """Place of the word in ``OUTCOMES``."""


_WORDS = tuple(OUTCOMES)


def ports_of(fleet: Fleet, hardware: Hardware, overlap: Overlap) -> list[Port]:
    """Each port for which the fleet has jobs."""
    return [
        _summarise(fleet, source, target, outcome)
        for source, target in PORTS
        if (outcome := _port(fleet, source, target, hardware, overlap)) is not None
    ]


def _port(
    fleet: Fleet, source: Architecture, target: Architecture, hardware: Hardware, overlap: Overlap
) -> _Outcome | None:
    place = np.flatnonzero(fleet.group == source)
    if fleet.features is None or not len(place):
        return None
    present = take(fleet.features, place)
    ported = port(present, target, hardware)
    busy, busy_there = breakdown(present, hardware), breakdown(ported, hardware)
    per_gpu = step_s(busy, overlap) / step_s(busy_there, overlap)
    whole = per_gpu * ported.num_gpus / present.num_gpus
    gains = whole > 1 + _NO_CHANGE
    slower = per_gpu <= 1 + _NO_CHANGE
    contends = slower & (busy_there.input_s > busy.input_s)
    too_large = gains & ~_fits(fleet, place, target, ported.num_gpus, hardware)
    chosen = {"too large": too_large, "gains": gains, "input contends": contends, "slower": slower}
    number = np.select(list(chosen.values()), [_WORDS.index(word) for word in chosen], _WORDS.index("fewer GPUs"))
    return _Outcome(
        place=place, before=present.num_gpus, after=ported.num_gpus, per_gpu=per_gpu, whole=whole, outcome=number
    )


def _fits(
    fleet: Fleet, place: NDArray[np.intp], target: Architecture, num_gpus: FloatArray, hardware: Hardware
) -> NDArray[np.bool_]:
    """Whether the weights fit a GPU: all of them if they are replicated; PEARL partitions the embeddings.

    Unknown sizes count as fitting. Activations are not counted.
    """
    if fleet.weight_bytes is None or fleet.dense_bytes is None:
        return np.ones(len(place), dtype=np.bool_)
    dense, weight = fleet.dense_bytes[place], fleet.weight_bytes[place]
    held = dense + (weight - dense) / num_gpus if target is Architecture.PEARL else weight
    return ~(held > hardware.memory_capacity_bytes)


def _summarise(fleet: Fleet, source: Architecture, target: Architecture, outcome: _Outcome) -> Port:
    counts = np.bincount(outcome.outcome, minlength=len(_WORDS)).tolist()
    bins = np.bincount(np.searchsorted(_EDGES, outcome.whole, side="right"), minlength=len(BIN_NAMES))
    fracs: list[float] = (bins / len(outcome.place)).tolist()
    order = _extremes(outcome.whole)
    return Port(
        source=source.label,
        target=target.label,
        jobs=len(outcome.place),
        per_gpu=distribution(outcome.per_gpu),
        whole=distribution(outcome.whole),
        outcomes={word: count for word, count in zip(_WORDS, counts, strict=True) if count},
        bins=list(zip(BIN_NAMES, fracs, strict=True)),
        best=[_example(fleet, outcome, number) for number in order[::-1][:_EXAMPLES]],
        worst=[_example(fleet, outcome, number) for number in order[:_EXAMPLES]],
    )


def _extremes(values: FloatArray) -> list[int]:
    """Places of the lowest and the highest values, in order, without sorting all of them."""
    if len(values) <= 2 * _EXAMPLES:
        return np.argsort(values, kind="stable").tolist()
    parted = np.argpartition(values, [_EXAMPLES, len(values) - _EXAMPLES - 1])
    chosen = np.concatenate([parted[:_EXAMPLES], parted[-_EXAMPLES:]])
    return chosen[np.argsort(values[chosen], kind="stable")].tolist()


def _example(fleet: Fleet, outcome: _Outcome, number: int) -> PortedJob:
    return PortedJob(
        job=fleet.job_name(int(outcome.place[number])),
        gpus_before=round(outcome.before[number]),
        gpus_after=round(outcome.after[number]),
        per_gpu=float(outcome.per_gpu[number]),
        whole=float(outcome.whole[number]),
        outcome=_WORDS[int(outcome.outcome[number])],
    )


def distribution(gains: FloatArray) -> Distribution:
    """Quantiles and mean of gains."""
    p10, p25, median, p75, p90 = np.quantile(gains, [0.1, 0.25, 0.5, 0.75, 0.9]).tolist()
    faster = float(np.mean(gains > 1 + _NO_CHANGE))
    mean = float(np.mean(gains))
    return Distribution(p10=p10, p25=p25, median=median, p75=p75, p90=p90, mean=mean, faster_frac=faster)
