"""Features of a program as a row of the table of jobs that `stoker perf fleet` reads."""

from __future__ import annotations

import csv
from pathlib import Path

from stoker.perf.equations import Architecture
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.features.traffic import traffic_bytes
from stoker.perf.fleet.jobs import ARCHITECTURE, JOB

_SERVER = 8
"""GPUs of a server, as in the study behind the table."""


def architecture_for(num_gpus: int) -> Architecture:
    """Default architecture for so many GPUs: replicas within a server, or in several."""
    if num_gpus == 1:
        return Architecture.ONE_GPU
    return Architecture.ALLREDUCE_LOCAL if num_gpus <= _SERVER else Architecture.ALLREDUCE_CLUSTER


def fleet_row(found: StepFeatures, architecture: Architecture, num_gpus: int) -> dict[str, str | float]:
    """The columns of one job in which each GPU computes this step.

    Products, convolutions, attention and recurrent layers count by their FLOPs, all other operations by their bytes,
    each operation as a separate kernel. Optimizer states are divided between tables and the rest by size.

    Raises:
        ValueError: the architecture has another number of GPUs.
    """
    if num_gpus < 1 or (architecture is Architecture.ONE_GPU and num_gpus != 1):
        wanted = "at least 1" if num_gpus < 1 else f"1 for the architecture {architecture.label}"
        raise ValueError(f"`num_gpus` must be {wanted}, got {num_gpus}")
    weights = found.weights
    kept = 1.0 + weights.optimizer_bytes / max(1, weights.bytes)
    return {
        JOB: found.name,
        ARCHITECTURE: architecture.label,
        "num_gpus": num_gpus,
        "flops": found.matrix_flops(),
        "memory_bytes": sum(o.eager_bytes for o in found.operations if o.kind not in MATRIX_KINDS),
        "input_bytes": found.input_bytes,
        "traffic_bytes": traffic_bytes(weights, architecture, num_gpus),
        "dense_weight_bytes": weights.dense_bytes * kept,
        "embedding_weight_bytes": weights.embedding_bytes * kept,
    }


def append_row(path: Path, row: dict[str, str | float]) -> int:
    """Adds a row to a table of such rows, or starts one; returns its number of rows.

    Raises:
        ValueError: the file has other columns.
        OSError: it cannot be read or written.
    """
    lines: list[list[str]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
    if lines and lines[0] != list(row):
        raise ValueError(f"`{path}` must have the columns {', '.join(row)}, got {', '.join(lines[0])}")
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not lines:
            writer.writerow(row)
        writer.writerow([f"{cell:.7g}" if isinstance(cell, float) else cell for cell in row.values()])
    return max(1, len(lines))
