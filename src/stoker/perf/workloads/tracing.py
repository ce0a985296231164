"""Traces the published workloads, and keeps the sums that a prediction needs of each as a table of the package.

``tables/traced.json.gz`` is what :func:`compiled` makes; `python -m stoker.perf.workloads.tracing` writes it again, and
has to after a change of a module, a formula or a sum. Needs torch; reading the table does not.
"""

from __future__ import annotations

import functools
import gzip
from importlib import import_module
from pathlib import Path

import msgspec

from stoker.perf.features.records import StepFeatures
from stoker.perf.prediction.work import Array, work_of
from stoker.perf.tables.rows import Published
from stoker.perf.tables.traced import FILE, Traced, key_of
from stoker.perf.workloads.definitions import defined_rows
from stoker.perf.workloads.mpt import SHAPES
from stoker.perf.workloads.workload import Optimizer, Workload

_SHORT, _LONGER = 20, 40
"""Passes of a loop that are traced: all cost the same, so two lengths say what any costs."""


def features_of(workload: Workload) -> StepFeatures:
    """Of one step, as eager PyTorch with automatic mixed precision runs it on a GPU."""
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
    decoders = import_module("stoker.perf.workloads.modules.decoders")
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
    return {key_of(each): each for _, each in defined_rows()}


def compiled() -> dict[str, Traced]:
    """The table, by key; takes some minutes."""
    return {key: traced(workload) for key, workload in sorted(distinct().items())}


if __name__ == "__main__":
    target = Path(__file__).parents[1] / "tables" / FILE
    target.write_bytes(gzip.compress(msgspec.json.encode(compiled()), mtime=0))
