"""MPT's published steps under FSDP as the work of one of their GPUs, computed in advance."""

from __future__ import annotations

import functools
import gzip
from importlib.resources import files

import msgspec

FILE = "decoders.json.gz"


class DecoderRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ``llm-foundry``.

    Attributes:
        work: of one GPU and optimizer step, in the order of :data:`stoker.perf.prediction.work_vector.AMOUNTS`: all
            micro-batches, recomputation, and its share of the optimizer's.
        own_s: of the measured step, without exchange that is not hidden and without waiting for other GPUs.
    """

    model: str
    gpu: str
    gpus: int
    nodes: int
    work: tuple[float, ...]
    own_s: float


@functools.cache
def decoders() -> tuple[DecoderRow, ...]:
    """All rows, in the order of the published table."""
    packed = (files("stoker.perf.study.tables") / FILE).read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=tuple[DecoderRow, ...])
