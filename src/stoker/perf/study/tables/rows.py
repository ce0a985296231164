"""The published measurements, row by row."""

from __future__ import annotations

import csv
import functools
import gzip
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """One published training throughput.

    Attributes:
        source: table it comes from: ``lambda-v1``, ``nvidia-dle``, ``llm-foundry`` or ``vtrain-single``.
        family: architecture, the same word across all sources.
        gpu: name in the catalogue.
        host: what the publisher calls the server; empty if not stated.
        nodes: 0 if not stated.
        batch_per_gpu: items of a micro-batch; 0 if missing.
        accumulation: micro-batches per step.
        seq_len: tokens; 0 if missing or meaningless.
        precision: ``fp32``, ``tf32``, ``fp16`` or ``bf16``: what tensor cores run, not what the publisher wrote.
        step_s: of one optimizer step; 0 if the unit of the throughput is not an item of the batch.
        params: 0 if missing.
        measured: False for arithmetic that looks like measurements (``vtrain-single``): never a measure of accuracy.
    """

    source: str
    family: str
    model: str
    framework: str
    task: str
    gpu: str
    host: str
    gpus: int
    nodes: int
    batch_per_gpu: float
    accumulation: int
    seq_len: int
    precision: str
    throughput: float
    unit: str
    step_s: float
    params: int
    sharding: str
    checkpointing: bool
    note: str
    url: str

    @property
    def measured(self) -> bool:
        """Whether it is a measurement."""
        return self.source != "vtrain-single"

    @property
    def configuration(self) -> tuple[object, ...]:
        """What ran on what hardware, without its speed: rows that share it are repetitions."""
        return (
            self.source,
            self.model,
            self.framework,
            self.task,
            self.gpu,
            self.gpus,
            self.nodes,
            self.batch_per_gpu,
            self.accumulation,
            self.seq_len,
            self.precision,
            self.sharding,
            self.checkpointing,
        )


FILE = "published.csv.gz"
COLUMNS = tuple(Published.__dataclass_fields__)
_NUMBERS = {"gpus": int, "nodes": int, "accumulation": int, "seq_len": int, "params": int}
_FRACTIONS = ("batch_per_gpu", "throughput", "step_s")


@functools.cache
def published() -> tuple[Published, ...]:
    """All rows, in the order of the sources."""
    packed = (files("stoker.perf.study.tables") / FILE).read_bytes()
    return tuple(_published(row) for row in csv.DictReader(gzip.decompress(packed).decode().splitlines()))


def _published(row: dict[str, str]) -> Published:
    typed: dict[str, Any] = dict(row)
    for name, kind in _NUMBERS.items():
        typed[name] = kind(row[name])
    for name in _FRACTIONS:
        typed[name] = float(row[name])
    typed["checkpointing"] = row["checkpointing"] == "True"
    return Published(**typed)
