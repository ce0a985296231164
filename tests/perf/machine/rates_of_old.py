"""Rates of a machine that never was: 100 GFLOP/s, 10 GB/s from memory and 40 from caches, 2 us to begin."""

from __future__ import annotations

from stoker.perf.machine.rates import Rates, Sample, Work

START_S, FLOPS, WARM, COLD = 2e-6, 100e9, 40e9, 10e9


def made_rates(**changed: object) -> Rates:
    """Its calibration."""
    samples: list[Sample] = []
    for elements in (100, 10_000, 1_000_000):
        for curve, tensors in (("add", 3), ("relu", 2), ("add.optimizer", 3)):
            samples.append(_sample(curve, (elements, tensors), 0.0, 4.0 * tensors * elements))
    for m in (16, 128, 1024):
        for n in (16, 128, 1024):
            for way in ("forward", "backward"):
                size = 4.0 * (m * n + n * n + m * n)
                samples.append(_sample(f"matmul.{way}", (m, n, n), 2.0 * m * n * n, size))
    fields: dict[str, object] = {
        "machine": "made", "threads": 2, "torch": "0", "measured_at": "never", "took_s": 1.0,
        "cache_bytes": 32 << 20, "samples": tuple(samples),
        "host_s": {"forward": 5e-6, "backward": 4e-6, "optimizer": 3e-6},
        "coldness": dict.fromkeys(("forward", "backward", "optimizer"), 1.0),
        "all_reduce": ((1e4, 1e-4), (1e6, 1e-3)),
    }  # fmt: skip
    return Rates(**{**fields, **changed})  # type: ignore[arg-type]


def _sample(curve: str, dims: tuple[float, ...], flops: float, size: float) -> Sample:
    computed = START_S + flops / FLOPS
    work = Work(curve=curve, dims=dims, flops=flops, bytes=size)
    return Sample(work=work, warm_s=computed + size / WARM, cold_s=computed + size / COLD)
