"""Predicted seconds of a traced step's calls: what the measures of a plan are compared by."""

from __future__ import annotations

from stoker.perf.catalogue import Gpu, catalogue, gpu, gpu_named
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import Operation, StepFeatures
from stoker.perf.machine import Rates, RatesError, default_path, load
from stoker.perf.machine.prediction import rank_of
from stoker.perf.memory.choice.offloading import HostLink
from stoker.perf.memory.kernel_memory import on_gpu
from stoker.perf.memory.timeline import with_seconds
from stoker.perf.prediction.predictor import Predictor
from stoker.run.fitting.devices import FitDevice

_FLOPS_PER_S, _BYTES_PER_S = 40e9, 8e9
"""What one core of a server reaches in products and in what only moves bytes (assumed where nothing was measured)."""
_LIKE = "A100-80GB-SXM"
"""GPU whose times stand for those of one that the catalogue does not know."""


def host_link(device: FitDevice) -> HostLink:
    """What lies between a device and host memory: the slot of the GPU, by the catalogue.

    On an emulated device a copy is one of this machine's memory, read and written, which overlaps with nothing.
    """
    if device.target == "cuda":
        return HostLink(_card(device.name).pcie, overlaps=True)
    return HostLink(_BYTES_PER_S / 2, overlaps=False)


def priced(features: StepFeatures, timeline: MemoryTimeline, device: FitDevice) -> MemoryTimeline:
    """The timeline with seconds: of this machine's calibration, of the GPU, or by assumed rates of a core."""
    return seconds_of(features, on_device(timeline, device), device)


def seconds_of(features: StepFeatures, timeline: MemoryTimeline, device: FitDevice) -> MemoryTimeline:
    """The timeline, on its device, with seconds alone."""
    return with_seconds(timeline, features, _times(features, device))


def on_device(timeline: MemoryTimeline, device: FitDevice) -> MemoryTimeline:
    """The timeline with what kernels take, where they are a GPU's."""
    return on_gpu(timeline, _card(device.name)) if device.target == "cuda" else timeline


def _times(features: StepFeatures, device: FitDevice) -> PassTimes:
    if device.target == "cuda":
        rank = Predictor().rank(features, _card(device.name))
        if rank.tier != "refused":
            return rank.times
    else:
        rates = _rates()
        if rates is not None:
            rank = rank_of(features, rates)
            if rank.tier != "refused":
                return rank.times
    return PassTimes.of(features, _roofline)


def _roofline(operation: Operation) -> float:
    return max(operation.flops / _FLOPS_PER_S, operation.eager_bytes / _BYTES_PER_S)


def _rates() -> Rates | None:
    try:
        return load(default_path())
    except RatesError:
        return None


def _card(name: str) -> Gpu:
    """The GPU of the catalogue that a driver calls so."""
    return gpu(gpu_named(name, catalogue()) or _LIKE)
