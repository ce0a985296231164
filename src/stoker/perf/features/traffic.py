"""Bytes that one step sends, per GPU and architecture."""

from __future__ import annotations

from stoker.perf.equations import Architecture, ring_traffic
from stoker.perf.features.records import Weights


def traffic_bytes(weights: Weights, architecture: Architecture, num_gpus: int) -> float:
    """Bytes of weights and gradients that a GPU moves in a step.

    Servers and a host receive gradients and send weights: the dense ones and the rows of embeddings that are
    touched. Rings pass 2(n - 1)/n of the gradients. Partitioned embeddings exchange touched rows and their gradients.
    """
    if architecture is Architecture.ONE_GPU or (num_gpus == 1 and architecture is not Architecture.PS_WORKER):
        return 0.0
    rows = 2.0 * weights.embedding_touched_bytes
    if architecture in (Architecture.ONE_SERVER, Architecture.PS_WORKER):
        return weights.dense_bytes + weights.dense_gradient_bytes + rows
    if architecture is Architecture.PEARL:
        return ring_traffic(float(weights.dense_gradient_bytes), float(num_gpus)) + rows * (num_gpus - 1) / num_gpus
    return ring_traffic(float(weights.dense_gradient_bytes + weights.embedding_gradient_bytes), float(num_gpus))
