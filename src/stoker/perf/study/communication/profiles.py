"""Published models as an exchange sees them: their gradients, in order, and when each is ready.

``profiles.json.gz`` is part of the package: :func:`compiled` makes it by tracing each model of the published rows.
A layer's share of the step does not depend on the GPU here: it is by FLOPs and bytes, as in
:meth:`~stoker.perf.communication.times.PassTimes.measured`. Compile again with ``python -m
stoker.perf.study.communication.profiles``.
"""

from __future__ import annotations

import functools
import gzip
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import msgspec

from stoker.perf.communication.replicas import Shard
from stoker.perf.communication.times import PassTimes, layers_of
from stoker.perf.features.records import StepFeatures
from stoker.perf.study.workloads.definitions import defined_rows
from stoker.perf.study.workloads.workload import Workload

_FILE = "profiles.json.gz"
_LOOP = 20
"""Passes of a module's loop that are traced: the shares of its layers hardly depend on it."""


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One model, one micro-batch.

    Attributes:
        weights: parameters.
        forward: share of the step on one GPU that all forward passes take.
        backward: shares of the step of layers with gradients, in the order of the forward pass; that of others is
            added to the layer whose gradients come next.
        gradient_bytes: of each of these layers.
    """

    weights: int
    forward: float
    backward: tuple[float, ...]
    gradient_bytes: tuple[int, ...]

    def shard(self, micro_s: float, sent: float = 1.0) -> Shard:
        """The profile on a GPU with this time for a micro-batch, and these bytes of gradients."""
        gradients = tuple(size * sent for size in self.gradient_bytes)
        idle = (0.0,) * len(gradients)
        backward = tuple(share * micro_s for share in self.backward)
        return Shard(forward_s=idle, backward_s=backward, weight_bytes=idle, gradient_bytes=gradients)


def key_of(workload: Workload) -> str:
    """What a profile depends on."""
    return f"{workload.model} {sorted(workload.options.items())}"


@functools.cache
def profiles() -> dict[str, ModelProfile]:
    """All compiled profiles, by :func:`key_of` their workload."""
    packed = (files("stoker.perf.study.communication") / _FILE).read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=dict[str, ModelProfile])


def profile_of(features: StepFeatures) -> ModelProfile:
    """The profile of a traced step."""
    times, layers = PassTimes.measured(features, 1.0), layers_of(features)
    backward: list[float] = []
    gradients: list[int] = []
    waiting = 0.0
    for layer, seconds in zip(reversed(layers), reversed(times.backward_s), strict=True):
        size = layer.dense_gradient_bytes + layer.embedding_gradient_bytes
        waiting += seconds
        if size:
            backward.append(round(waiting, 6))
            gradients.append(size)
            waiting = 0.0
    return ModelProfile(
        weights=features.weights.count, forward=round(sum(times.forward_s), 6),
        backward=tuple(reversed(backward)), gradient_bytes=tuple(reversed(gradients)),
    )  # fmt: skip


def compiled() -> bytes:
    """The package's table, by tracing the largest micro-batch of each published model."""
    torch = import_module("torch")
    characterise = import_module("stoker.perf").characterise
    largest: dict[str, Workload] = {}
    for _, workload in defined_rows():
        known = largest.setdefault(key_of(workload), workload)
        if workload.batch > known.batch:
            largest[key_of(workload)] = workload
    found: dict[str, ModelProfile] = {}
    for key, workload in sorted(largest.items()):
        step = workload.shortened(_LOOP) if workload.loop else workload
        with torch.device("meta"):
            module = step.build()
        found[key] = profile_of(characterise(module, step.tensors(), optimizer=torch.optim.Adam))
    return gzip.compress(msgspec.json.encode(found), 9, mtime=0)


if __name__ == "__main__":
    (Path(__file__).parent / _FILE).write_bytes(compiled())
