"""Where a measured step differs from the predicted one: in which part, and where in the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.records.profile import ModuleTime, Predicted, Residual

NAMES: Mapping[str, str] = {
    "input": "input",
    "compute": "compute-bound operations",
    "memory": "memory-bound operations",
    "host": "the host's work",
    "communication": "exposed communication",
    "optimizer": "the optimizer",
    "other": "the rest of the loop",
}
"""Names of the parts in sentences."""
_MOST = 0.6
"""Share of a gap that a module must have to be named for it."""
_LEAST = 0.03
"""Shares of the step that are closer than this agree: the published scatter of equal runs."""


def find_residual(
    measured: Mapping[str, float],
    predicted: Predicted,
    modules: Iterable[ModuleTime],
    expected: Mapping[str, Mapping[str, float]],
) -> Residual:
    """The part whose share of the step exceeds the predicted one most, and the module with most of the excess.

    Shares and not seconds are compared, since an error common to all parts says nothing about any of them. Input is
    excluded, since a prediction from the model does not include it.

    Args:
        measured: seconds by part.
        predicted: the same step.
        modules: measured seconds by module.
        expected: by part and module, amounts in proportion to the predicted seconds (:func:`modules_of`).
    """
    known = [name for name in NAMES if name != "input"]
    measured_s = {name: measured.get(name, 0.0) for name in known}
    predicted_s = {name: predicted.parts.get(name, 0.0) for name in known}
    total, whole = sum(measured_s.values()) or 1.0, sum(predicted_s.values()) or 1.0
    gaps = {name: measured_s[name] / total - predicted_s[name] / whole for name in known}
    part = max(gaps, key=lambda name: gaps[name])
    if gaps[part] < _LEAST:
        text = f"no part is more than {100 * _LEAST:.0f} % of the step above its predicted share"
        return Residual(part="", predicted_frac=0.0, measured_frac=0.0, module="", text=text)
    module = ""
    if part in ("compute", "memory"):
        amounts = expected.get(part, {})
        all_of_it = sum(amounts.values()) or 1.0
        shares = {path: amount / all_of_it for path, amount in amounts.items()}
        found = {each.path: (each.compute_s if part == "compute" else each.memory_s) / total for each in modules}
        scale = predicted_s[part] / whole
        paths = found.keys() | shares.keys()
        module = locate({path: found.get(path, 0.0) - scale * shares.get(path, 0.0) for path in paths}, gaps[part])
    predicted_frac, measured_frac = predicted_s[part] / whole, measured_s[part] / total
    where = f"{NAMES[part]} of {module}" if module else NAMES[part]
    text = f"predicted {part} {100 * predicted_frac:.0f} %, measured {100 * measured_frac:.0f} %: the gap is in {where}"
    return Residual(
        part=part, predicted_frac=predicted_frac, measured_frac=measured_frac, module=module, text=text
    )  # fmt: skip


def modules_of(features: StepFeatures | None) -> dict[str, dict[str, float]]:
    """Stand-ins for each module's time if operations are not predicted one by one: FLOPs, and bytes."""
    sums: dict[str, dict[str, float]] = {"compute": {}, "memory": {}}
    for operation in features.operations if features is not None else ():
        if operation.phase != "optimizer":
            is_product = operation.kind in MATRIX_KINDS
            found = sums["compute" if is_product else "memory"]
            amount = operation.flops if is_product else operation.eager_bytes
            found[operation.module] = found.get(operation.module, 0.0) + amount
    return sums


def locate(gaps: Mapping[str, float], total: float) -> str:
    """The innermost module with most of a gap; empty if it is spread over the model.

    Args:
        gaps: by path of module, without submodules.
        total: the whole gap; only gaps of its sign count.
    """
    alike = {path: abs(gap) for path, gap in gaps.items() if gap * total > 0}
    whole = sum(alike.values())
    below: dict[str, float] = {}
    for path, gap in alike.items():
        words = path.split(".") if path else []
        for count in range(1, len(words) + 1):
            name = ".".join(words[:count])
            below[name] = below.get(name, 0.0) + gap / whole
    holder = ""
    while True:
        depth = holder.count(".") + 1 if holder else 0
        inner = [name for name in below if name.count(".") == depth and (not holder or name.startswith(holder + "."))]
        best = max(inner, key=lambda name: below[name], default="")
        if not best or below[best] < _MOST:
            return holder
        holder = best
