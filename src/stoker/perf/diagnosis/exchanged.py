"""What ``--comm auto`` could spare of a measured step's exchange: smaller forms of gradients, weighed with their work.

No link is known here, so the exposed exchange is taken to last in proportion to its bytes, and what the joint products
take in proportion to the step's own products. A run itself measures both, tries its plan, and keeps it where it gains.
"""

from __future__ import annotations

from dataclasses import dataclass

from stoker.perf.communication.gradients import gradient_layers
from stoker.perf.communication.methods import GradientLayer, late_bytes, ring_bytes, rows_bytes
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures


@dataclass(frozen=True, slots=True)
class SparedExchange:
    """What smaller forms spare.

    Attributes:
        layers: that get one.
        bytes_frac: of the bytes that a rank sends.
        seconds: of a step, the added products subtracted.
    """

    layers: int = 0
    bytes_frac: float = 0.0
    seconds: float = 0.0


def spared_exchange(features: StepFeatures, ranks: int, exposed_s: float, compute_s: float) -> SparedExchange:
    """What a step of DDP would spare by late-multiply and rows.

    Args:
        features: of the step on one rank.
        ranks: that exchange.
        exposed_s: exchange that the step waits for (s), without straggler wait.
        compute_s: the step's products, convolutions and attention (s).
    """
    layers = gradient_layers(features)
    sent = sum(ring_bytes(ranks, layer.bytes) for layer in layers)
    if not sent:
        return SparedExchange()
    flops = sum(operation.flops for operation in features.operations if operation.kind in MATRIX_KINDS)
    flop_s = compute_s / flops if flops else 0.0
    num, spared, seconds = 0, 0.0, 0.0
    for layer in layers:
        fewer = ring_bytes(ranks, layer.bytes) - _smallest(layer, ranks)
        # The joint product of all ranks' rows comes on top of the rank's own.
        added_s = 2.0 * layer.width_in * layer.width_out * ranks * layer.rows * flop_s
        gained_s = exposed_s * fewer / sent - added_s
        if fewer > 0 and gained_s > 0:
            num, spared, seconds = num + 1, spared + fewer, seconds + gained_s
    return SparedExchange(layers=num, bytes_frac=spared / sent, seconds=seconds)


def _smallest(layer: GradientLayer, ranks: int) -> float:
    """Bytes that a rank sends of a layer in its smallest form; those of the all-reduce where it has no other."""
    whole = ring_bytes(ranks, layer.bytes)
    if layer.why_not:
        return whole
    if layer.lookups:
        return min(whole, rows_bytes(ranks, min(layer.lookups, layer.table_rows), layer.width_out))
    if layer.rows:
        rest = ring_bytes(ranks, layer.bytes - layer.product_bytes)
        return min(whole, rest + late_bytes(ranks, layer.rows, layer.width_in + layer.width_out, layer.factor_bytes))
    return whole
