"""CPUs that a job's input needs for full speed: drawn, from Synergy's curves, or as the trace says."""

from __future__ import annotations

import numpy as np

from stoker.scale.cluster.curves import RateCurve, concave
from stoker.scale.cluster.state import FloatArray

GOLDMINER_CPUS = (4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 32.0, 48.0, 64.0)
"""vCPUs for each GPU at full speed, equally likely. Made up after GoldMiner (SIGMOD 2023), which says that most of its
jobs need more than 8 and some need 64."""

_SYNERGY_CPUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)
_SYNERGY_SPEED: dict[str, tuple[float, ...]] = {
    "alexnet": (0.30, 0.66, 1, 1.25, 1.53, 1.75, 2.0, 2.94, 2.94),
    "shufflenet": (0.30, 0.66, 1, 1.25, 1.53, 1.75, 2.0, 2.89, 2.89),
    "resnet18": (0.37, 0.72, 1, 1.30, 1.53, 1.75, 2.4, 2.4, 2.4),
    "mobilenet": (0.37, 0.72, 1, 1.30, 1.49, 1.55, 1.55, 1.55, 1.55),
    "resnet50": (0.40, 0.74, 1, 1.15, 1.15, 1.15, 1.15, 1.15, 1.15),
    "m5": (0.30, 0.66, 1, 1.2, 1.4, 2.5, 2.5, 2.5, 2.5),
    "deepspeech": (0.30, 0.66, 1, 1, 1, 1, 1, 1, 1),
    **dict.fromkeys(("bert", "gnmt", "transformer", "lstm", "vae"), (1.0,) * 9),
}
"""Speed relative to 3 CPUs for each GPU, at enough memory. Source: Synergy (OSDI 2022), its profiles."""
SYNERGY_MODELS = tuple(_SYNERGY_SPEED)


def synergy_curve(model: str) -> RateCurve:
    """The curve of one GPU of a model, as a share of its full speed: the smallest concave one over the profile."""
    speeds = _SYNERGY_SPEED[model]
    return concave([(cpus, speed / max(speeds)) for cpus, speed in zip(_SYNERGY_CPUS, speeds, strict=True)])


def segments_of(curves: list[RateCurve], gpus: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Widths and slopes of jobs whose GPUs have these curves each; columns as many as the longest curve needs."""
    most = max(len(curve.points) for curve in curves)
    widths, slopes = np.zeros((len(curves), most)), np.zeros((len(curves), most))
    for row, (curve, count) in enumerate(zip(curves, gpus.tolist(), strict=True)):
        before = (0.0, 0.0)
        for column, (cpus, rate) in enumerate(curve.points):
            widths[row, column] = (cpus - before[0]) * count
            slopes[row, column] = (rate - before[1]) / widths[row, column]
            before = (cpus, rate)
    return widths, slopes


def faster_gpus(widths: FloatArray, slopes: FloatArray, speedup: float) -> tuple[FloatArray, FloatArray]:
    """The same jobs on GPUs that are so many times as fast: full speed is higher, and takes as many more CPUs.

    Beyond the CPUs of a curve's last breakpoint the input was never the limit, so its last slope goes on.
    """
    if speedup == 1.0:
        return widths, slopes
    rates = widths * slopes
    last = (rates > 0.0).sum(axis=1) - 1
    rows = np.arange(len(widths))
    grown = widths.copy()
    grown[rows, last] += (speedup - 1.0) / slopes[rows, last]
    return grown, slopes / speedup
