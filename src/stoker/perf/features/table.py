"""Features as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.core.units import format_bytes
from stoker.perf.equations import Architecture
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.features.traffic import traffic_bytes

_GPUS = 8


def text_of(found: StepFeatures) -> str:
    """A table of operations, then memory, traffic and unknown operations."""
    head = ["phase", "kind", "kernels", "FLOPs", "bytes", "fused", "kernels"]
    rows = [
        [phase, kind, f"{sums.count:,}", count_of(sums.flops), format_bytes(sums.eager_bytes),
         format_bytes(sums.fused_bytes), f"{sums.fused_count:,}"]
        for (phase, kind), sums in found.by_kind().items()
    ]  # fmt: skip
    total = [
        "step", "", f"{sum(o.count for o in found.operations):,}", count_of(found.flops),
        format_bytes(found.eager_bytes), format_bytes(found.fused_bytes),
        f"{sum(o.fused_count for o in found.operations):,}",
    ]  # fmt: skip
    parts = f" in {found.micro_batches} micro-batches" if found.micro_batches > 1 else ""
    lines = [f"{found.name}: one training step of {found.batch_size} samples{parts}, kernels of {found.target}", ""]
    lines += _table(head, [*rows, total])
    lines += ["", "  fused: chains of elementwise work, norms and softmax kept on the chip, as a compiler would", ""]
    lines += [f"  {name:<12}{value}" for name, value in _facts(found)]
    lines += _notes(found)
    return "\n".join(lines) + "\n"


def _facts(found: StepFeatures) -> list[tuple[str, str]]:
    weights = found.weights
    states = weights.dense_gradient_bytes + weights.embedding_gradient_bytes
    servers = traffic_bytes(weights, Architecture.PS_WORKER, _GPUS)
    ring = traffic_bytes(weights, Architecture.ALLREDUCE_LOCAL, _GPUS)
    pearl = traffic_bytes(weights, Architecture.PEARL, _GPUS)
    matrix = sum(o.flops for o in found.operations if o.kind in MATRIX_KINDS)
    return [
        ("parameters", f"{weights.dense_count:,} dense, {weights.embedding_count:,} in embedding tables"),
        ("memory", f"weights {format_bytes(weights.bytes)}, gradients {format_bytes(states)}, "
                   f"optimizer {format_bytes(weights.optimizer_bytes)}, "
                   f"activations up to {format_bytes(found.activation_peak_bytes)}"),
        ("peak", f"{format_bytes(found.peak_bytes)} alive at once"),
        ("input", f"{format_bytes(found.input_bytes)} a batch, {format_bytes(found.input_bytes_per_sample)} a sample"),
        ("arithmetic", f"{count_of(matrix)}FLOPs of products, {found.flops / max(1.0, found.eager_bytes):.1f} "
                       "FLOPs a byte"),
        ("traffic", f"a GPU of {_GPUS}: AllReduce {format_bytes(ring)}, PS/Worker {format_bytes(servers)}, "
                    f"PEARL {format_bytes(pearl)}"),
    ]  # fmt: skip


def _notes(found: StepFeatures) -> list[str]:
    lines: list[str] = []
    if found.unknown:
        lines += ["", "  without a formula (bytes are inputs and outputs, FLOPs are missing):"]
        lines += [f"    {u.name} at {u.where}: {u.count} calls, {format_bytes(u.bytes)}" for u in found.unknown]
    if found.assumptions:
        lines += ["", "  assumed:", *(f"    {sentence}" for sentence in found.assumptions)]
    return lines


def count_of(value: float) -> str:
    """A count with three digits and its power of a thousand."""
    for power, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * power:
            return f"{value / power:.3g} {letter}"
    return f"{value:.0f} "


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if at < 2 else c.rjust(w) for at, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  " + "  ".join(cells).rstrip()

    rule = "  " + "-" * (sum(widths) + 2 * len(widths) - 2)
    return [line(head), rule, *map(line, rows[:-1]), rule, line(rows[-1])]
