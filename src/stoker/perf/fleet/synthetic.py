"""A made-up fleet after the published marginals of the PAI study, whose own table of jobs was never released.

For each job it draws its class, its GPUs, the length of its step on the study's testbed and the shares of its parts;
features follow by turning the equations round. Distributions are quantile tables, filled evenly, so that marginals come
out close at any size. What no source says (the split of the jobs outside PS/Worker, the lengths of steps) is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from stoker.perf.equations import LINKS, PATHS, Architecture, FloatArray
from stoker.perf.fleet.jobs import SYNTHETIC_PREFIX, Fleet, fleet_of
from stoker.perf.hardware import PAPER_TESTBED, Resource

Quantiles = Sequence[tuple[float, float]]
"""Pairs of a share of the jobs and the value that this share stays below."""

JOBS_PER_1000 = {
    Architecture.PS_WORKER: 290,
    Architecture.ONE_GPU: 596,
    Architecture.ONE_SERVER: 105,
    Architecture.ALLREDUCE_LOCAL: 6,
    Architecture.ALLREDUCE_CLUSTER: 2,
    Architecture.PEARL: 1,
}
"""Jobs of each class in 1,000; PS/Worker is published, AllReduce under 1 % is recalled, the rest is assumed."""
_LARGE_FRAC = 0.0241
"""Share of the PS/Worker jobs with more than 128 GPUs: 0.7 % of all jobs."""


class _Kind(NamedTuple):
    """Distributions of the jobs of a class.

    Attributes:
        log2_gpus: their number, as a power of 2.
        communication: share of the step.
        input: share of the rest of the step.
        memory: share of the computation that is memory-bound.
    """

    log2_gpus: Quantiles
    communication: Quantiles
    input: Quantiles
    memory: Quantiles


_KINDS = {
    Architecture.ONE_GPU: _Kind(
        log2_gpus=((0, 0), (1, 0)),
        communication=((0, 0), (1, 0)),
        input=((0, 0), (0.5, 0.035), (0.8, 0.13), (0.95, 0.28), (0.9501, 0.5), (1, 0.9)),
        memory=((0, 0.2), (0.5, 0.64), (1, 1)),
    ),
    Architecture.ONE_SERVER: _Kind(
        log2_gpus=((0, 1), (0.5, 1), (0.5001, 2), (0.75, 2), (0.7501, 3), (1, 3)),
        communication=((0, 0.05), (0.5, 0.35), (1, 0.8)),
        input=((0, 0), (0.5, 0.08), (1, 0.45)),
        memory=((0, 0.2), (0.5, 0.62), (1, 1)),
    ),
    Architecture.ALLREDUCE_LOCAL: _Kind(
        log2_gpus=((0, 1), (0.2, 1), (0.2001, 2), (0.4, 2), (0.4001, 3), (1, 3)),
        communication=((0, 0.01), (0.5, 0.12), (1, 0.4)),
        input=((0, 0), (0.5, 0.05), (1, 0.3)),
        memory=((0, 0.3), (0.5, 0.65), (1, 1)),
    ),
    Architecture.ALLREDUCE_CLUSTER: _Kind(
        log2_gpus=((0, 4), (0.5, 4), (0.5001, 5), (1, 6)),
        communication=((0, 0.2), (0.5, 0.5), (1, 0.8)),
        input=((0, 0), (0.5, 0.05), (1, 0.2)),
        memory=((0, 0.3), (0.5, 0.62), (1, 1)),
    ),
    Architecture.PEARL: _Kind(
        log2_gpus=((0, 3), (0.5, 4), (1, 5)),
        communication=((0, 0.2), (0.5, 0.45), (1, 0.7)),
        input=((0, 0), (0.5, 0.01), (1, 0.05)),
        memory=((0, 0.3), (0.5, 0.7), (1, 1)),
    ),
}

_PS_MEMORY: Quantiles = ((0, 0.25), (0.5, 0.63), (1, 1))


class _Part(NamedTuple):
    """A part of the PS/Worker jobs.

    Attributes:
        frac: of the PS/Worker jobs.
        log2_gpus: their number, as a power of 2.
        communication: share of the step.
        contention: what input takes longer if the GPUs of a server share a root, as a multiple of what communication
            takes, as a power of 10.
    """

    frac: float
    log2_gpus: Quantiles
    communication: Quantiles
    contention: Quantiles


# Two or three GPUs hardly contend: losing by it takes more of them. Large jobs communicate more.
# Ported to AllReduce-Local a step loses 20/21 of its communication, to AllReduce-Cluster 0.19 of it, and in both its
# input contends. So the three parts are: no gain in either, gain in one server only, gain in both.
_PS_PARTS = (
    _Part(
        frac=0.226,
        log2_gpus=((0, 2.3), (0.5, 2.9), (0.9, 3.8), (1, 5.0)),
        communication=((0, 0.05), (0.5, 0.42), (1, 0.75)),
        contention=((0, 0.0), (0.7, 0.12), (1, 0.5)),
    ),
    _Part(
        frac=0.095,
        log2_gpus=((0, 2.3), (0.5, 3.2), (0.9, 4.5), (1, 6.0)),
        communication=((0, 0.4), (0.5, 0.68), (1, 0.9)),
        contention=((0, -0.7), (1, -0.04)),
    ),
    _Part(
        frac=0.679,
        log2_gpus=((0, 1.0), (0.25, 2.3), (0.5, 3.25), (0.8, 4.65), (0.96, 5.8), (1, 7.0)),
        communication=((0, 0.38), (0.41, 0.79), (0.7, 0.885), (1, 0.97)),
        contention=((0, -3.0), (1, -0.75)),
    ),
)
_STEP_S: Quantiles = ((0, 0.02), (0.1, 0.08), (0.5, 0.3), (0.9, 1.2), (1, 5.0))
_DENSE_LOG10_BYTES: Quantiles = ((0, 6.0), (0.5, 7.9), (0.985, 9.9), (1, 10.3))
_EMBEDDING_LOG10_BYTES: Quantiles = ((0, 7.0), (0.5, 8.6), (0.7, 9.6), (0.7001, 10.1), (0.85, 11.0), (1, 11.48))


def synthetic_fleet(jobs: int, seed: int = 0) -> Fleet:
    """Jobs that never ran, the same ones for the same arguments.

    Raises:
        ValueError: ``jobs`` is below 1.
    """
    if jobs < 1:
        raise ValueError(f"`jobs` must be at least 1, got {jobs}")
    rng = np.random.default_rng(seed)
    code = _classes(rng, jobs)
    drawn: dict[str, FloatArray] = {}
    for architecture in Architecture:
        place = np.flatnonzero(code == architecture)
        for name, values in _draw(rng, architecture, len(place)).items():
            drawn.setdefault(name, np.zeros(jobs))[place] = values
    names = [f"{SYNTHETIC_PREFIX}{number:07d}" for number in range(1, jobs + 1)]
    name = f"synthetic fleet of {jobs:,} jobs, seed {seed}"
    return fleet_of(name, code, drawn, names, form="generated from the published marginals of the PAI study")


def _classes(rng: Generator, jobs: int) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Class of each job, the counts as exact as whole numbers are, in random order."""
    order = list(JOBS_PER_1000)
    edges = np.cumsum([JOBS_PER_1000[each] for each in order]) / 1000
    which = np.searchsorted(edges, _even(rng, jobs), side="right")
    return np.array(order, dtype=np.int8)[which]


def _draw(rng: Generator, architecture: Architecture, count: int) -> dict[str, FloatArray]:
    """Features of the jobs of one class."""
    if architecture is Architecture.PS_WORKER:
        num_gpus, communication, of_input, memory = _draw_ps(rng, count)
    else:
        kind = _KINDS[architecture]
        num_gpus = np.round(2 ** _pick(rng, count, kind.log2_gpus))
        communication = _pick(rng, count, kind.communication)
        of_input = _pick(rng, count, kind.input) * (1 - communication)
        memory = _pick(rng, count, kind.memory)
    step_s = _pick(rng, count, _STEP_S)
    computation_s = (1 - communication - of_input) * step_s
    sharing = 1.0 if architecture is Architecture.PS_WORKER else np.minimum(num_gpus, PAPER_TESTBED.gpus_per_pcie_root)
    seconds_per_byte = sum(1 / PAPER_TESTBED.rate(link) for link in LINKS if link in PATHS[architecture])
    traffic = communication * step_s / seconds_per_byte if seconds_per_byte else np.zeros(count)
    return {
        "num_gpus": num_gpus,
        "flops": (1 - memory) * computation_s * PAPER_TESTBED.rate(Resource.COMPUTE),
        "memory_bytes": memory * computation_s * PAPER_TESTBED.rate(Resource.MEMORY),
        "input_bytes": of_input * step_s * PAPER_TESTBED.rate(Resource.PCIE) / sharing,
        "traffic_bytes": traffic,
        **_draw_sizes(rng, architecture, num_gpus, traffic),
    }


def _draw_ps(rng: Generator, count: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """GPUs, share of communication, share of input, memory-bound share of the computation."""
    edges = np.cumsum([part.frac for part in _PS_PARTS])
    part = np.minimum(np.searchsorted(edges, _even(rng, count), side="right"), len(_PS_PARTS) - 1)
    num_gpus, communication, contention = np.zeros(count), np.zeros(count), np.zeros(count)
    for number, each in enumerate(_PS_PARTS):
        place = np.flatnonzero(part == number)
        num_gpus[place] = np.round(2 ** _pick(rng, len(place), each.log2_gpus))
        communication[place] = _pick(rng, len(place), each.communication)
        contention[place] = 10 ** _pick(rng, len(place), each.contention)
    large = np.argsort(rng.random(count))[: round(_LARGE_FRAC * count)]
    num_gpus[large] = np.round(rng.uniform(129, 150, len(large)))
    others = np.minimum(num_gpus, PAPER_TESTBED.gpus_per_pcie_root) - 1
    of_input = np.minimum(contention * communication / others, 0.95 * (1 - communication))
    return num_gpus, communication, of_input, _pick(rng, count, _PS_MEMORY)


def _draw_sizes(
    rng: Generator, architecture: Architecture, num_gpus: FloatArray, traffic: FloatArray
) -> dict[str, FloatArray]:
    """Model sizes that match the traffic: a ring sends the replicated part, servers send the dense part too."""
    count = len(num_gpus)
    embedding = np.zeros(count)
    dense = 10 ** _pick(rng, count, _DENSE_LOG10_BYTES)
    if architecture in (Architecture.ALLREDUCE_LOCAL, Architecture.ALLREDUCE_CLUSTER):
        dense = traffic * num_gpus / (2 * (num_gpus - 1))
    elif architecture is not Architecture.ONE_GPU:
        dense = traffic / 2 * rng.uniform(0.3, 1.0, count)
    if architecture in (Architecture.PS_WORKER, Architecture.PEARL):
        embedding = 10 ** _pick(rng, count, _EMBEDDING_LOG10_BYTES)
    return {"dense_weight_bytes": dense, "embedding_weight_bytes": embedding}


def _even(rng: Generator, count: int) -> FloatArray:
    """Numbers in [0, 1), one in each of ``count`` equal parts, in random order."""
    return (rng.permutation(count) + rng.random(count)) / max(1, count)


def _pick(rng: Generator, count: int, quantiles: Quantiles) -> FloatArray:
    """Values of a distribution given by its quantiles, joined smoothly."""
    return _monotone(_even(rng, count), *np.array(quantiles, dtype=np.float64).T)


def _monotone(at: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """The curve through the points that is monotone between them.

    Source: Fritsch and Butland, "A method for constructing local monotone piecewise cubic interpolants", SIAM J. Sci.
        Stat. Comput. 5 (1984): cubics whose slope at a point is a harmonic mean of its neighbours', or 0.
    """
    width = np.diff(x)
    slope = np.diff(y) / width
    before, after = slope[:-1], slope[1:]
    near, far = width[:-1] + 2 * width[1:], 2 * width[:-1] + width[1:]
    down = near * after + far * before
    inner = np.divide((near + far) * before * after, down, out=np.zeros(len(down)), where=before * after > 0)
    tangent = np.concatenate([slope[:1], inner, slope[-1:]])
    left = np.minimum(np.searchsorted(x, at, side="right") - 1, len(width) - 1)
    part, span = (at - x[left]) / width[left], width[left]
    rest = 1 - part
    straight = rest**2 * (1 + 2 * part) * y[left] + part**2 * (1 + 2 * rest) * y[left + 1]
    return straight + part * rest * span * (rest * tangent[left] - part * tangent[left + 1])
