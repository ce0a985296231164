"""Published rows about recommendation: NCF, Wide & Deep."""

from __future__ import annotations

from typing import Any

from stoker.perf.study.tables.rows import Published
from stoker.perf.study.workloads.workload import EXAMPLES, LAMBDA, Input, Optimizer, Rule, Workload

_NCF = f"{EXAMPLES} PyTorch/Recommendation/NCF"
_USERS, _ITEMS = 138_493, 26_744


def _ncf(row: Published) -> Workload:
    batch = 1 << 20 if row.batch_per_gpu == 1_048_580 else int(row.batch_per_gpu)  # 2**20, rounded in the table
    said = f"batch of all GPUs is divided by their number: {_NCF}/ncf.py:255"
    precision = row.precision
    if row.source == "lambda-v1":
        logs = f"logs of {LAMBDA} pytorch/results/*_v1/PyTorch_ncf_FP*"
        said = f"{said}; sizes, 31,832,577 weights: {logs}"
        if precision == "fp16" and row.gpu.startswith(("H100", "A100-80GB")):
            precision, said = "tf32", f"{said}; no mixed precision, ``amp : False``, though called fp16: the same logs"
    return Workload(
        name=row.model,
        model="recommenders:NeuralCollaborativeFiltering",
        inputs=(Input("users", (batch,), _USERS), Input("items", (batch,), _ITEMS), Input("labels", (batch,))),
        optimizer="adam",
        precision=precision,
        batch=batch,
        counted=batch,
        unit="samples",
        sources=(said, f"64 factors, MLP 256-256-128-64, default batch 2**20, Adam: {_NCF}/ncf.py:64-73,244"),
    )


_COLUMNS_TF1: dict[str, Any] = {
    "tables": (
        (300_000, 128), (100_000, 128), (4000, 64), (2500, 64), (2000, 64), (1000, 64), (300, 64),
        (10_000, 64), (350, 64), (100, 64),
        (250_000, 128), (4000, 64), (2500, 64), (1000, 64), (10_000, 64), (350, 64), (100, 64),
    ),
    "indicators": (2, 2, 3, 3, 6),
    "numbers": 32,
}  # fmt: skip
_VALUES_TF1 = (1,) * 7 + (6, 3, 3) + (1,) * 4 + (6, 3, 3) + (1,) * 5
_COLUMNS_TF2: dict[str, Any] = {
    "tables": (
        (300_000, 128), (4, 19), (100_000, 128), (4000, 64), (1000, 64), (2500, 64), (300, 64), (2000, 64),
        (350, 64), (10_000, 64), (100, 64),
        (250_000, 128), (2500, 64), (4000, 64), (1000, 64), (5000, 128),
    ),
    "numbers": 13,
}  # fmt: skip
_VALUES_TF2 = (1,) * 8 + (3,) * 3 + (1,) * 5


def _wide_deep(
    row: Published, options: dict[str, Any], values: tuple[int, ...], optimizer: Optimizer, *sources: str
) -> Workload:
    """A wide-and-deep model with so many values for each feature."""
    batch = int(row.batch_per_gpu)
    rows = [rows for rows, _ in options["tables"]] + list(options.get("indicators", ()))
    return Workload(
        name=row.model,
        model="recommenders:WideAndDeep",
        options=options,
        inputs=(
            Input("labels", (batch,)),
            Input("numbers", (batch, options["numbers"])),
            *(Input("feature", (batch, count), below) for count, below in zip(values, rows, strict=True)),
        ),
        optimizer=optimizer,
        precision=row.precision,
        batch=batch,
        counted=batch,
        unit="samples",
        sources=sources,
    )


def _wide_deep_tf1(row: Published) -> Workload:
    where = f"{EXAMPLES} TensorFlow/Recommendation/WideAndDeep"
    columns = f"columns and tables: {where}/README.md:79-102; values of a multi-hot column: trainer/features.py"
    return _wide_deep(
        row, _COLUMNS_TF1, _VALUES_TF1, "adagrad+ftrl", columns, f"optimizers: {where}/trainer/task.py:365-383"
    )


def _wide_deep_tf2(row: Published) -> Workload:
    where = f"{EXAMPLES} TensorFlow2/Recommendation/WideAndDeep"
    columns = f"columns, tables, about 92 M weights: {where}/README.md:89-110"
    return _wide_deep(
        row, _COLUMNS_TF2, _VALUES_TF2, "rmsprop+ftrl", columns, f"optimizers: {where}/trainer/run.py:36-40"
    )


RULES: dict[str, Rule] = {
    "ncf": _ncf,
    "NCF": _ncf,
    "NCF (TF1)": _ncf,
    "Wide&Deep (TF1)": _wide_deep_tf1,
    "Wide&Deep (TF2)": _wide_deep_tf2,
}
