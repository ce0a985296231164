"""The bandwidths at which the boxes of published steps exchange.

A box of virtual machines without peer access has no data sheet: its bandwidths are fitted to steps of models whose
gradients pass through it (:mod:`stoker.perf.study.communication.fitting`); ``boxes.json``, part of the package, holds
them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files

import msgspec

from stoker.perf.catalogue import gpu
from stoker.perf.communication.links import Interconnect, fabric_of
from stoker.perf.communication.replicas import ddp
from stoker.perf.study.communication.scaling import Scaling

Box = tuple[str, str, str]
"""Publisher, GPU, and the host as the publisher calls it."""
Table = tuple[list[tuple[str, str, str, int, float]], dict[str, float]]
"""The content of ``boxes.json``: box, GPUs and bandwidth; and the share of waiting by publisher."""
FILE = "boxes.json"


@dataclass(frozen=True, slots=True)
class Fitted:
    """Bandwidths of boxes and shares of waiting.

    Attributes:
        bandwidths: bytes/s of a ring.
        waiting: share of computation, by publisher.
    """

    bandwidths: Mapping[tuple[Box, int], float] = field(default_factory=dict[tuple[Box, int], float])
    waiting: Mapping[str, float] = field(default_factory=dict[str, float])

    def fabric(self, box: Box, gpus: int) -> Interconnect:
        """What connects the GPUs of a box; by the GPU's specification if nothing is fitted."""
        usual = fabric_of(gpu(box[1]), gpus=gpus)
        if (box, gpus) not in self.bandwidths:
            return usual
        source = f"fitted to published steps of {' '.join(filter(None, box))} on {gpus} GPUs"
        bandwidth = self.bandwidths[box, gpus]
        return replace(usual, name="box", bandwidth=bandwidth, sweep="", spread=1.5, basis="fitted", source=source)

    def step_s(self, scaling: Scaling) -> float:
        """Seconds of a step, from its time on one GPU."""
        fabric = self.fabric(scaling.box, scaling.gpus)
        return scaling.alone_s * (1 + self.waiting.get(scaling.source, 0.0)) + exposed_s(scaling, fabric)


@functools.cache
def fitted() -> Fitted:
    """The package's fit to all rows."""
    rows, waiting = msgspec.json.decode((files("stoker.perf.study.communication") / FILE).read_bytes(), type=Table)
    return Fitted({((source, name, host), gpus): rate for source, name, host, gpus, rate in rows}, waiting)


def exposed_s(scaling: Scaling, fabric: Interconnect) -> float:
    """Seconds by which the exchange delays a step."""
    shard = scaling.profile.shard(scaling.micro_s, scaling.sent)
    return ddp(shard, scaling.group(fabric)).overlap.exposed_s
