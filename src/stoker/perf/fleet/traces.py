"""Published cluster traces as fleets, as far as their columns allow; each says what it lacks.

No published trace holds FLOPs, bytes touched and bytes sent per step, so none can be projected to other hardware or
architectures. Known here: the traces that came with Muri (measured stages of a step), Philly (GPUs and durations),
Alibaba's GPU trace of 2023 (requests), and the mini-batch times of four PAI jobs (stragglers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stoker.core.errors import JobTableError
from stoker.perf.equations import CodeArray, FloatArray
from stoker.perf.fleet.jobs import Fleet

Columns = Mapping[str, list[str]]
Reader = Callable[[str, Columns], Fleet]

_SIZES = ("1 GPU", "2 to 8 GPUs", "more than 8 GPUs")
_FEATURES = "flops, memory_bytes, input_bytes, traffic_bytes and architecture of each job"
_BREAKDOWN = "measured stages of a step, or " + _FEATURES
_PROJECTIONS = {
    "who gains from porting": _FEATURES,
    "what an upgrade buys": _FEATURES,
    "memory-bound and compute-bound work, and single links": "flops, memory_bytes, traffic_bytes and architecture",
}


def reader_of(head: Sequence[str]) -> Reader | None:
    """The reader of a trace with this first line; None if it is not a known one."""
    names = set(head)
    return next((reader for needed, reader in _READERS if needed <= names), None)


def _muri(name: str, columns: Columns) -> Fleet:
    num_gpus = _floats(name, columns, "num_gpu")
    stages = {
        "input": _floats(name, columns, "resource_time_0"),
        "computation": _floats(name, columns, "resource_time_1"),
        "communication": _floats(name, columns, "resource_time_2"),
    }
    return Fleet(
        name=name,
        form="a trace of Muri (SIGCOMM 2022): stages of a step in ms, measured",
        groups=_SIZES,
        group=_size_of(num_gpus),
        num_gpus=num_gpus,
        names=[f"{job} ({model})" for job, model in zip(columns["job_id"], columns["model_name"], strict=True)],
        duration_s=_floats(name, columns, "duration") * 1e-3,
        stage_s={stage: values * 1e-3 for stage, values in stages.items()},
        notes=(
            "stages overlap: a step counts as its longest stage alone, and stages are not added up",
            "which column is which stage is inferred from the values of known models: CPU and storage, GPU, network",
        ),
        missing=_PROJECTIONS,
    )


def _philly(name: str, columns: Columns) -> Fleet:
    num_gpus = _floats(name, columns, "num_gpus")
    return Fleet(
        name=name,
        form="the Philly trace of 2017: GPUs and durations",
        groups=_SIZES,
        group=_size_of(num_gpus),
        num_gpus=num_gpus,
        duration_s=_floats(name, columns, "duration"),
        missing={"where the time of a step goes": _BREAKDOWN, **_PROJECTIONS},
    )


def _alibaba_pods(name: str, columns: Columns) -> Fleet:
    kept = [number for number, count in enumerate(columns["num_gpu"]) if count not in ("", "0")]
    chosen = {each: [columns[each][number] for number in kept] for each in ("name", "num_gpu", "gpu_milli")}
    # A pod may request a part of one GPU; with several GPUs the column means nothing.
    whole = _floats(name, chosen, "num_gpu")
    part = np.where(whole == 1, _floats(name, chosen, "gpu_milli") / 1000, 1.0)
    skipped = len(columns["num_gpu"]) - len(kept)
    return Fleet(
        name=name,
        form="pods of Alibaba's GPU trace of 2023: what was asked for, not what was used",
        groups=("part of a GPU", *_SIZES),
        group=np.where(part < 1, 0, _size_of(whole) + 1).astype(np.int8),
        num_gpus=whole * part,
        names=chosen["name"],
        notes=(f"{skipped:,} pods without a GPU are left out; training and serving are mixed",),
        missing={"where the time of a step goes": _BREAKDOWN, **_PROJECTIONS},
    )


def _pai_steps(name: str, columns: Columns) -> Fleet:
    worker = _floats(name, columns, "worker")
    step, time = _floats(name, columns, "time"), _floats(name, columns, "batch_time_norm")
    steps, place = np.unique(step, return_inverse=True)
    slowest = np.full(len(steps), -np.inf)
    np.maximum.at(slowest, place, time)
    workers = np.bincount(place)
    whole = (workers == len(np.unique(worker))) & (slowest > 0)
    late = slowest[whole] / (np.bincount(place, time)[whole] / workers[whole])
    median, p95 = np.quantile(late, [0.5, 0.95]) if len(late) else (np.nan, np.nan)
    return Fleet(
        name=name,
        form="mini-batch times of one PAI job, normalised",
        groups=("the job",),
        group=np.zeros(1, dtype=np.int8),
        num_gpus=np.array([float(len(np.unique(worker)))]),
        notes=(
            f"stragglers: the slowest of {len(np.unique(worker))} workers takes {median:.2f} times the mean of its "
            f"step in the median, {p95:.2f} times in one of twenty ({int(whole.sum()):,} steps); "
            "synchronous training waits for it",
        ),
        missing={"where the time of a step goes": _BREAKDOWN, **_PROJECTIONS},
    )


_READERS: tuple[tuple[set[str], Reader], ...] = (
    ({"resource_time_0", "resource_time_1", "resource_time_2", "num_gpu", "duration", "model_name", "job_id"}, _muri),
    ({"timestamp", "duration", "num_gpus", "gpu_time", "cluster"}, _philly),
    ({"name", "num_gpu", "gpu_milli", "qos", "creation_time"}, _alibaba_pods),
    ({"worker", "time", "batch_time_norm"}, _pai_steps),
)


def _size_of(num_gpus: FloatArray) -> CodeArray:
    return np.searchsorted(np.array([1.5, 8.5]), num_gpus).astype(np.int8)


def _floats(name: str, columns: Columns, column: str) -> FloatArray:
    try:
        return np.array(columns[column], dtype=np.float64)
    except ValueError as error:
        raise JobTableError(
            f"`{column}` of `{name}` must be a column of numbers: {error}", path=name, column=column
        ) from None
