"""The published steps that the predictor is calibrated on and judged by: one for each distinct configuration."""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.perf.catalogue import gpu
from stoker.perf.communication.collectives import Group
from stoker.perf.communication.links import fabric_of
from stoker.perf.communication.replicas import ddp
from stoker.perf.communication.stragglers import slowest
from stoker.perf.prediction.terms import TERMS, Stack, unit_times
from stoker.perf.prediction.work_vector import AMOUNTS, Array
from stoker.perf.study.communication.profiles import key_of as profile_key
from stoker.perf.study.communication.profiles import profiles
from stoker.perf.study.communication.scaling import group_in
from stoker.perf.study.holdout import Study
from stoker.perf.study.tables.decoders import DecoderRow, decoders
from stoker.perf.study.tables.rows import Published
from stoker.perf.study.tables.traced import Traced, traced_programs
from stoker.perf.study.workloads.definitions import defined_rows
from stoker.perf.study.workloads.workload import Workload

_COMPILED = ("TensorFlow", "TensorFlow2", "MxNet", "PaddlePaddle")
"""Frameworks whose published runs fuse elementwise work: XLA, MXNet's fused operators, Paddle's fused kernels."""
LOOSE = {
    "tacotron2": "the lengths of its clips, and so the steps of its decoder, are a mean of the data set",
    "ncf": "rows on several GPUs gain up to 1.9 times a GPU: something else than its step limits it",
    "wide-deep": "predicted too fast by half in every row: its tables are read by the step's own input pipeline",
    "vnet": "predicted too fast by two thirds: steps of some milliseconds, whose input is cut from volumes on the way",
}
"""Families whose definition alone does not determine their step. They are predicted and shown, but excluded from
calibration and from the judgement of predictions."""
_HALVINGS = 30
_AT = {name: place for place, name in enumerate(AMOUNTS)}
_PER_STEP = [_AT[name] for name in ("optimizer bytes", "unfused optimizer bytes")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One measured configuration.

    Attributes:
        step_s: median over the hosts of the measurement.
        hosts: how many.
    """

    source: str
    family: str
    framework: str
    host: str
    gpu: str
    gpus: int
    workload: Workload
    traced: Traced
    step_s: float
    hosts: int

    @property
    def is_loose(self) -> bool:
        """Whether its definition leaves open what limits its step."""
        return self.family in LOOSE

    @property
    def stack(self) -> Stack:
        """The software that ran it; only Lambda's runs are channels first."""
        return Stack(compiled=self.framework in _COMPILED, channels_last=self.source == "nvidia-dle")

    @property
    def group(self) -> Group:
        """Its GPUs, on their own fabric."""
        return group_in(self.host, self.gpus, fabric_of(gpu(self.gpu), gpus=self.gpus))

    def at_spec(self) -> Array:
        """Seconds of each term on one GPU, at the vendors' rates: all micro-batches and one optimizer step."""
        work = np.array(self.traced.work) * self.workload.accumulation
        work[_PER_STEP] = np.array(self.traced.work)[_PER_STEP]
        return work @ unit_times(gpu(self.gpu), self.workload.precision, self.stack)

    def spread(self, alone_s: float) -> tuple[float, float, float]:
        """Likely, lowest and highest seconds on all its GPUs of a step that takes ``seconds`` on one.

        As :func:`~stoker.perf.communication.step_on_cluster.spread` has them, here from a profile of the layers.
        """
        if self.gpus == 1:
            return alone_s, alone_s, alone_s
        profile = profiles()[profile_key(self.workload)]
        exchange = ddp(profile.shard(alone_s / self.workload.accumulation), self.group)
        likely, low, high = (alone_s * (1.0 + share) for share in slowest(self.gpus))
        return likely + exchange.overlap.exposed_s, low + exchange.low_s, high + exchange.high_s

    def alone(self, step_s: float) -> float:
        """Seconds on one GPU of a step that takes this long on all of them: the reverse of :meth:`spread`."""
        low, high = 0.0, step_s
        for _ in range(_HALVINGS):
            half = (low + high) / 2
            low, high = (half, high) if self.spread(half)[0] < step_s else (low, half)
        return high


@functools.cache
def configurations() -> tuple[Configuration, ...]:
    """All of ``lambda-v1`` and ``nvidia-dle`` that have a workload, in the order of the table."""
    found: dict[tuple[object, ...], list[tuple[Published, Workload]]] = defaultdict(list)
    for row, workload in defined_rows():
        where = (row.source, row.family, row.framework, workload.name, row.gpu, row.gpus)
        found[*where, workload.accumulation, workload.key].append((row, workload))
    programs = traced_programs()
    return tuple(
        Configuration(
            source=rows[0][0].source, family=rows[0][0].family, framework=rows[0][0].framework, host=rows[0][0].host,
            gpu=rows[0][0].gpu, gpus=rows[0][0].gpus, workload=rows[0][1], traced=programs[rows[0][1].key],
            step_s=statistics.median(workload.step_s(row) for row, workload in rows), hosts=len(rows),
        )
        for rows in found.values()
    )  # fmt: skip


def study(found: Sequence[Configuration]) -> Study:
    """Configurations on one GPU as a study."""
    return Study(TERMS, np.array([each.at_spec() for each in found]), np.array([each.step_s for each in found]))


MPT, FOUNDRY = "mpt", "llm-foundry"
"""Family and source of the decoders."""


def decoders_on_one_server() -> list[DecoderRow]:
    """Decoders with fused attention, which no step on one GPU has; over several servers too much of it is exchange."""
    return [each for each in decoders() if each.nodes == 1]


def decoder_study(found: Sequence[DecoderRow]) -> Study:
    """The work of single GPUs in them, as a study."""
    at_spec = [np.array(each.work) @ unit_times(gpu(each.gpu), "bf16", Stack()) for each in found]
    return Study(TERMS, np.array(at_spec), np.array([each.own_s for each in found]))
