"""Published steps on one GPU and on several of the same server: the measured cost of spreading them.

A row on several GPUs is anchored by the same configuration on one, which leaves the exchange and waiting to explain.
:func:`peculiarity` gives the reason for each excluded row.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from dataclasses import dataclass

from stoker.perf.catalogue import gpu
from stoker.perf.communication.collectives import Group
from stoker.perf.communication.links import Interconnect, fabric_of, network_of
from stoker.perf.study.communication.profiles import ModelProfile, key_of, profiles
from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads.definitions import defined_rows
from stoker.perf.study.workloads.workload import Workload

_HALVED = ("bert", "gnmt", "transformer-big")
"""Families whose programs keep 16-bit weights in mixed precision, and so send 16-bit gradients: Apex's O2 and GNMT's
own optimizer for 16 bits (NVIDIA/DeepLearningExamples, PyTorch); BERT in TensorFlow compresses them for Horovod."""
_GPUS_OF_HOST = {"DGX-2": 16}
_NETWORKS = {"DGX-1": 4 * 12.5e9, "DGX-2": 8 * 12.5e9, "DGX A100": 8 * 25e9}
"""Bytes/s of a host's links to others: 4 and 8 EDR, 8 HDR adapters (NVIDIA's data sheets); 1 HDR elsewhere."""
_PECULIAR = {
    "transformer-xl": "no exchange shows: 2 GB cost nothing between RTX 4090s, where 0.6 GB of GNMT cost 130 ms",
    "ncf": "gains up to 1.9 times a GPU: something else than its step limits it on one",
    "tacotron2": "bound by the host: 861 steps of a decoder with tiny kernels, on a CPU that processes share",
    "vnet": "4 MB of gradients: loses 7 to 15 ms whatever the batch, which no link takes",
    "efficientnet": "loses up to a third with 21 MB of gradients: bound by something else on several GPUs",
    "bart": "two configurations of six lose a third, the others 1 to 4 %, with equal gradients",
}
"""Why rows of a family show nothing about links; found in the rows themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """One configuration on several GPUs, and its time on one.

    Attributes:
        family: architecture, across all sources.
        host: as the publisher calls the server; empty where it does not say.
        micro_s: of one micro-batch on one GPU.
        step_s: as measured.
        sent: bytes exchanged for each byte of fp32 gradients.
    """

    source: str
    family: str
    model: str
    gpu: str
    host: str
    precision: str
    gpus: int
    batch: int
    accumulation: int
    micro_s: float
    step_s: float
    profile: ModelProfile
    sent: float

    @property
    def box(self) -> tuple[str, str, str]:
        """What it was measured on: publisher, GPU, host."""
        return self.source, self.gpu, self.host

    @property
    def alone_s(self) -> float:
        """The step with an exchange that costs nothing."""
        return self.accumulation * self.micro_s

    def group(self, fabric: Interconnect | None = None) -> Group:
        """The GPUs; on their own fabric by default."""
        return group_in(self.host, self.gpus, fabric or fabric_of(gpu(self.gpu), gpus=self.gpus))


def group_in(host: str, gpus: int, fabric: Interconnect) -> Group:
    """So many GPUs of a server by the publisher's name, and of others like it if it has fewer."""
    local = min(gpus, _GPUS_OF_HOST.get(host, 8))
    return Group(fabric=fabric, size=gpus, local=local, network=network_of(_NETWORKS.get(host, 25e9)))


def peculiarity(family: str) -> str:
    """Why rows of a family show nothing about links; empty for those that do."""
    return _PECULIAR.get(family, "")


@functools.cache
def scalings() -> tuple[Scaling, ...]:
    """Configurations of ``lambda-v1`` and ``nvidia-dle`` with rows on one GPU and on more; medians of repetitions."""
    found: dict[tuple[object, ...], dict[int, list[tuple[Published, Workload]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row, workload in defined_rows():
        shapes = tuple(each.shape for each in workload.inputs)
        where = (row.source, row.model, row.framework, row.task, row.gpu, row.host, row.precision)
        found[*where, shapes, workload.precision][row.gpus].append((row, workload))
    return tuple(
        _scaling(many, [workload.step_s(row) / workload.accumulation for row, workload in counts[1]])
        for counts in found.values()
        if 1 in counts
        for gpus, many in counts.items()
        if gpus > 1
    )


def _scaling(many: list[tuple[Published, Workload]], alone: list[float]) -> Scaling:
    row, workload = many[0]
    is_half = workload.precision == "fp16" and row.family in _HALVED
    return Scaling(
        source=row.source, family=row.family, model=row.model, gpu=row.gpu, host=row.host,
        precision=workload.precision, gpus=row.gpus, batch=workload.batch, accumulation=workload.accumulation,
        micro_s=statistics.median(alone),
        step_s=statistics.median(workload.step_s(row) for row, workload in many),
        profile=profiles()[key_of(workload)], sent=0.5 if is_half else 1.0,
    )  # fmt: skip
