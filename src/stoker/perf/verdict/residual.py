"""Where a measured step differs from the predicted one: in which part, and where in the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.verdict.profile import ModuleTime, Predicted, Residual

NAMES: Mapping[str, str] = {
    "input": "input",
    "compute": "compute-bound operations",
    "memory": "memory-bound operations",
    "host": "the host's work",
    "communication": "exposed communication",
    "optimizer": "the optimizer",
    "other": "the rest of the loop",
}
"""The parts as they are called in sentences."""
_MOST = 0.6
"""A module holds a gap when it has this share of it."""
_LEAST = 0.03
"""Shares of the step that are closer than this agree: the published scatter of equal runs."""


def find_residual(
    measured: Mapping[str, float], predicted: Predicted, modules: Iterable[ModuleTime], features: StepFeatures | None
) -> Residual:
    """The part whose share of the step differs most, and the module that holds most of that.

    Shares rather than seconds are compared: what is off in all parts alike says nothing about any of them. Input is
    left out, since a prediction from the model does not know it.

    Args:
        measured: seconds by part.
        predicted: the same step.
        modules: measured seconds by module.
        features: what was predicted from.
    """
    known = [name for name in NAMES if name != "input"]
    measured_s = {name: measured.get(name, 0.0) for name in known}
    predicted_s = {name: predicted.parts.get(name, 0.0) for name in known}
    total, expected = sum(measured_s.values()) or 1.0, sum(predicted_s.values()) or 1.0
    gaps = {name: measured_s[name] / total - predicted_s[name] / expected for name in known}
    part = max(gaps, key=lambda name: abs(gaps[name]))
    if abs(gaps[part]) < _LEAST:
        text = f"no part is further off than {abs(100 * gaps[part]):.0f} % of the step"
        return Residual(part="", predicted_frac=0.0, measured_frac=0.0, module="", text=text)
    module = ""
    if part in ("compute", "memory") and features is not None:
        shares = _predicted_modules(part, features)
        found = {each.path: (each.compute_s if part == "compute" else each.memory_s) / total for each in modules}
        scale = predicted_s[part] / expected
        paths = found.keys() | shares.keys()
        module = locate({path: found.get(path, 0.0) - scale * shares.get(path, 0.0) for path in paths}, gaps[part])
    predicted_frac, measured_frac = predicted_s[part] / expected, measured_s[part] / total
    where = f"{NAMES[part]} of {module}" if module else NAMES[part]
    text = f"predicted {part} {100 * predicted_frac:.0f} %, measured {100 * measured_frac:.0f} %: the gap is in {where}"
    return Residual(
        part=part, predicted_frac=predicted_frac, measured_frac=measured_frac, module=module, text=text
    )  # fmt: skip


def _predicted_modules(part: str, features: StepFeatures) -> dict[str, float]:
    """Share of each module in a part: of FLOPs, or of bytes."""
    sums: dict[str, float] = {}
    for operation in features.operations:
        if operation.phase == "optimizer" or (operation.kind in MATRIX_KINDS) != (part == "compute"):
            continue
        amount = operation.flops if part == "compute" else operation.eager_bytes
        sums[operation.module] = sums.get(operation.module, 0.0) + amount
    total = sum(sums.values()) or 1.0
    return {path: amount / total for path, amount in sums.items()}


def locate(gaps: Mapping[str, float], total: float) -> str:
    """The innermost module that holds most of a gap; empty where it is spread over the model.

    Args:
        gaps: by path of module, of its own operations.
        total: the whole gap, whose sign counts.
    """
    if total == 0:
        return ""
    below: dict[str, float] = {}
    for path, gap in gaps.items():
        words = path.split(".") if path else []
        for count in range(1, len(words) + 1):
            name = ".".join(words[:count])
            below[name] = below.get(name, 0.0) + gap / total
    holder = ""
    while True:
        depth = holder.count(".") + 1 if holder else 0
        inner = [name for name in below if name.count(".") == depth and (not holder or name.startswith(holder + "."))]
        best = max(inner, key=lambda name: below[name], default="")
        if not best or below[best] < _MOST:
            return holder
        holder = best
