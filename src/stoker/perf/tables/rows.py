"""The published measurements, row by row."""

from __future__ import annotations

import csv
import functools
import gzip
from collections.abc import Iterator
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
        host: what the publisher calls the server; empty where it does not say.
        nodes: 0 where the publisher does not say.
        batch_per_gpu: items of a micro-batch; 0 where it is missing.
        accumulation: micro-batches a step.
        seq_len: tokens; 0 where it is missing or means nothing.
        precision: ``fp32``, ``tf32``, ``fp16`` or ``bf16``: what tensor cores run, not what the publisher wrote.
        step_s: of one optimizer step; 0 where the unit of the throughput is not an item of the batch.
        params: 0 where it is missing.
        measured: False for arithmetic that looks like measurements (``vtrain-single``): never to judge accuracy by.
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
        """Whether a clock was read for it."""
        return self.source != "vtrain-single"

    @property
    def configuration(self) -> tuple[object, ...]:
        """What was run, on what, without how fast it was: rows that share it are repetitions."""
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


@dataclass(frozen=True, slots=True)
class AllReduce:
    """One measured all-reduce among the GPUs of a server.

    Attributes:
        seconds: of one call, out of place.
        bus_bandwidth: ``2 (n - 1) / n x size_bytes / seconds``, in bytes a second.
    """

    gpu: str
    gpus: int
    size_bytes: int
    seconds: float
    bus_bandwidth: float
    url: str


COLUMNS = tuple(Published.__dataclass_fields__)
_NUMBERS = {"gpus": int, "nodes": int, "accumulation": int, "seq_len": int, "params": int}
_FRACTIONS = ("batch_per_gpu", "throughput", "step_s")


@functools.cache
def published() -> tuple[Published, ...]:
    """All rows, in the order of the sources."""
    return tuple(_published(row) for row in _read("published.csv.gz"))


@functools.cache
def all_reduces() -> tuple[AllReduce, ...]:
    """The sweep of sizes and counts on A100 and V100 servers."""
    return tuple(
        AllReduce(
            row["gpu"],
            int(row["gpus"]),
            int(row["size_bytes"]),
            float(row["seconds"]),
            float(row["bus_bandwidth"]),
            row["url"],
        )
        for row in _read("allreduce.csv.gz")
    )


def _published(row: dict[str, str]) -> Published:
    typed: dict[str, Any] = dict(row)
    for name, kind in _NUMBERS.items():
        typed[name] = kind(row[name])
    for name in _FRACTIONS:
        typed[name] = float(row[name])
    typed["checkpointing"] = row["checkpointing"] == "True"
    return Published(**typed)


def _read(name: str) -> Iterator[dict[str, str]]:
    packed = (files("stoker.perf.tables") / name).read_bytes()
    yield from csv.DictReader(gzip.decompress(packed).decode().splitlines())
