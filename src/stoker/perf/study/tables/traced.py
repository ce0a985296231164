"""The published workloads as sums of their work, traced in advance: predicting them needs no torch."""

from __future__ import annotations

import functools
import gzip
from importlib.resources import files

import msgspec

FILE = "traced.json.gz"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One traced program.

    Attributes:
        work: amounts of one micro-batch and one optimizer step, in the order of
            :data:`stoker.perf.prediction.work_vector.AMOUNTS`.
        gradient_bytes: of all parameters.
        unknown: operations without a formula.
    """

    name: str
    work: tuple[float, ...]
    gradient_bytes: int
    unknown: tuple[str, ...] = ()


@functools.cache
def traced_programs() -> dict[str, Traced]:
    """All traced programs, by the key of their workload."""
    packed = (files("stoker.perf.study.tables") / FILE).read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=dict[str, Traced])
