"""Traces the published workloads, and keeps the sums that a prediction needs of each as a table of the package.

`python -m stoker.perf.study.workloads.tracing` makes ``tables/traced.json.gz`` and ``tables/decoders.json.gz``; run it
again after a change of a module, a formula or a sum. Needs torch; reading the tables does not.
"""

from __future__ import annotations

import functools
import gzip
from importlib import import_module
from pathlib import Path

import msgspec

from stoker.perf.catalogue import gpu
from stoker.perf.communication import PassTimes, Spread, spread
from stoker.perf.communication.blocks import paths_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import PHASES, StepFeatures
from stoker.perf.prediction.work_vector import Array, work_of
from stoker.perf.strategy import Machines, Strategy
from stoker.perf.study.tables.decoders import FILE as DECODERS
from stoker.perf.study.tables.decoders import DecoderRow
from stoker.perf.study.tables.rows import Published
from stoker.perf.study.tables.traced import FILE, Traced
from stoker.perf.study.workloads.definitions import defined_rows
from stoker.perf.study.workloads.mpt import SHAPES, mpt_rows
from stoker.perf.study.workloads.workload import Optimizer, Workload

_HALVINGS = 40
_SHORT, _LONGER = 20, 40
"""Passes of a loop that are traced: all cost the same, so two lengths give the cost of any."""


def features_of(workload: Workload) -> StepFeatures:
    """Features of one step, as eager PyTorch with automatic mixed precision runs it on a GPU."""
    torch = import_module("torch")
    with torch.device("meta"):
        model = workload.build()
    return import_module("stoker.perf").characterise(
        model,
        workload.tensors(),
        optimizer=_optimizer(workload.optimizer),
        autocast={"fp16": torch.float16, "bf16": torch.bfloat16}.get(workload.precision),
        name=workload.name,
        batch_size=workload.batch,
    )


def mpt_features(row: Published) -> StepFeatures:
    """One micro-batch of a row of ``llm-foundry``, weights and activations in bfloat16 as FSDP casts them."""
    torch = import_module("torch")
    decoders = import_module("stoker.perf.study.workloads.modules.decoders")
    with torch.device("meta"):
        model = decoders.MPT(SHAPES[row.model], row.seq_len).bfloat16()
    batch = int(row.batch_per_gpu)
    tokens = torch.zeros(batch, row.seq_len, dtype=torch.long)
    optimizer = import_module("torch.optim").AdamW
    return import_module("stoker.perf").characterise(model, tokens, optimizer=optimizer, name=row.model)


_OPTIMIZERS: dict[Optimizer, tuple[str, dict[str, float]]] = {
    "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "adam": ("Adam", {}),
    "lamb": ("AdamW", {}),
    "rmsprop": ("RMSprop", {"momentum": 0.9}),
    "rmsprop+ftrl": ("RMSprop", {}),
    "adagrad+ftrl": ("Adagrad", {}),
}
"""LAMB's passes are AdamW's and a norm; FTRL keeps as much state as Adagrad and RMSprop."""


def _optimizer(name: Optimizer) -> object:
    called, options = _OPTIMIZERS[name]
    return functools.partial(getattr(import_module("torch.optim"), called), **options)


def traced(workload: Workload) -> Traced:
    """The sums of one workload."""
    if not workload.loop:
        return _traced(workload, work_of((found := features_of(workload)).operations), found)
    short, longer = (features_of(workload.shortened(passes)) for passes in (_SHORT, _LONGER))
    first = work_of(short.operations)
    each = (work_of(longer.operations) - first) / (_LONGER - _SHORT)
    return _traced(workload, first + each * (workload.loop - _SHORT), longer)


def _traced(workload: Workload, work: Array, found: StepFeatures) -> Traced:
    weights = found.weights
    return Traced(
        name=workload.name,
        work=tuple(float(f"{amount:.6g}") for amount in work),
        gradient_bytes=weights.dense_gradient_bytes + weights.embedding_gradient_bytes,
        unknown=tuple(sorted({unknown.name for unknown in found.unknown})),
    )


def distinct() -> dict[str, Workload]:
    """The workloads of the published rows, one for each trace, by its key."""
    return {each.key: each for _, each in defined_rows()}


def compiled() -> dict[str, Traced]:
    """The table, by key; takes some minutes."""
    return {key: traced(workload) for key, workload in sorted(distinct().items())}


def decoder(row: Published, features: StepFeatures) -> DecoderRow:
    """The step on one GPU of a row of ``llm-foundry``.

    Its compute time is the one at which the step matches the measurement, divided among layers by FLOPs and bytes,
    with the exchange of FSDP in overlap. It uses no calibration.
    """
    own = {
        phase: work_of(operation for operation in features.operations if operation.phase == phase) for phase in PHASES
    }
    passes = own["forward"] * (1 + row.checkpointing) + own["backward"]
    machines = Machines(gpu=gpu(row.gpu), gpus=row.gpus, network=200e9)  # 1600 Gbit/s a server
    blocks = paths_of(layers_of(features)) if row.checkpointing else ()
    strategy = Strategy(data="fsdp", accumulation=row.accumulation, recomputed=blocks)
    tokens = row.gpus * row.batch_per_gpu * row.accumulation * row.seq_len

    def spread_over(micro_batch_s: float) -> Spread:
        times = PassTimes.measured(features, micro_batch_s)
        return spread(times, features, machines, strategy, precision=row.precision)

    low, high = 0.0, tokens / row.throughput
    for _ in range(_HALVINGS):
        half = (low + high) / 2
        low, high = (half, high) if spread_over(half).step_s < tokens / row.throughput else (low, half)
    found = spread_over(high)
    work = passes * row.accumulation + own["optimizer"] / row.gpus
    return DecoderRow(
        model=row.model, gpu=row.gpu, gpus=row.gpus, nodes=row.nodes,
        work=tuple(float(f"{amount:.6g}") for amount in work),
        own_s=float(f"{found.compute_s + found.optimizer_s:.6g}"),
    )  # fmt: skip


def compiled_decoders() -> tuple[DecoderRow, ...]:
    """The table of MPT; takes some minutes."""
    known: dict[tuple[object, ...], StepFeatures] = {}
    found: list[DecoderRow] = []
    for row in mpt_rows():
        shape = row.model, row.seq_len, row.batch_per_gpu
        known[shape] = known.get(shape) or mpt_features(row)
        found.append(decoder(row, known[shape]))
    return tuple(found)


if __name__ == "__main__":
    folder = Path(__file__).parents[1] / "tables"
    (folder / FILE).write_bytes(gzip.compress(msgspec.json.encode(compiled()), mtime=0))
    (folder / DECODERS).write_bytes(gzip.compress(msgspec.json.encode(compiled_decoders()), mtime=0))
