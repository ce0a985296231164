"""The published workloads as sums of what they ask for, traced beforehand: predicting them needs no torch."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stoker.perf.workloads.workload import Workload

FILE = "traced.json.gz"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One traced program.

    Attributes:
        work: amounts of one micro-batch and one optimizer step, in the order of
            :data:`stoker.perf.prediction.work.AMOUNTS`.
        gradient_bytes: of all parameters.
        unknown: operations without a formula.
    """

    name: str
    work: tuple[float, ...]
    gradient_bytes: int
    unknown: tuple[str, ...] = ()


def key_of(workload: Workload) -> str:
    """What a trace depends on, in short."""
    return hashlib.sha256(repr(workload.program).encode()).hexdigest()[:16]


@functools.cache
def traced_programs() -> dict[str, Traced]:
    """All of them by key."""
    packed = (files("stoker.perf.tables") / FILE).read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=dict[str, Traced])
