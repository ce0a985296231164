"""MPT under FSDP on A100s, as MosaicML published it in llm-foundry: the work of a step in closed form.

Shapes: ``scripts/train/yamls/pretrain/mpt-*.yaml`` of llm-foundry. The parameter counts that they give agree with those
published to 0.1 %, for all 139 rows. Sharding is FSDP's FULL_SHARD; weights are gathered in 16 bits, for the forward
and the backward pass of each micro-batch, and gradients scattered once for each. Attention is the Triton kernel of that
time, which computes the full square; its backward pass has five products where the forward pass has two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stoker.perf.calibration.fitting import Term
from stoker.perf.catalogue import gpu
from stoker.perf.study.holdout import Study
from stoker.perf.study.tables.rows import Published, published

VOCABULARY = 50_368
_NARROW = 1024
"""Width of the matrix products that the term of that name refers to: their loss falls as 1 / width."""
_WIDE_HEAD = 128
_STATE_BYTES = 24
"""Bytes per parameter that AdamW reads and writes in fp32 (weight, gradient, two moments; three written)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of equal blocks, each 12 x width² weights."""

    width: int
    heads: int
    layers: int

    def parameters(self, seq_len: int) -> int:
        """Weights of the blocks, the embedding (shared with the output) and the positions."""
        return 12 * self.layers * self.width**2 + (VOCABULARY + seq_len) * self.width


SHAPES = {
    "MPT-125m": Shape(768, 12, 12),
    "MPT-350m": Shape(1024, 16, 24),
    "MPT-760m": Shape(1536, 12, 24),
    "MPT-1b": Shape(2048, 16, 24),
    "MPT-3b": Shape(2560, 20, 32),
    "MPT-7b": Shape(4096, 32, 32),
    "MPT-13b": Shape(5120, 40, 40),
    "MPT-30b": Shape(7168, 56, 48),
    "MPT-70b": Shape(8192, 64, 80),
}

TERMS = (
    Term("matrix products", 1.25, 0.3, "large products reach 70 to 90 % of an A100's rate in 16 bits"),
    Term("narrow matrix products", 0.3, 1.0, "small ones less; how much less is left to the measurements"),
    Term("attention", 1.5, 0.5, "kernels that never write the square reach about two thirds"),
    Term("attention of narrow heads", 0.1, 1.0, "heads below 128 fill the tensor cores less"),
    Term("pointwise", 12.0, 0.5, "tensors of tokens x width that a block reads or writes besides its products"),
    Term("loss", 12.0, 0.5, "the same, of tokens x vocabulary"),
    Term("recomputation", 0.9, 0.2, "the forward pass again, without its output layer"),
    Term("exchange within a server", 0.5, 1.0, "part of it is hidden behind computation"),
    Term("exchange between servers", 0.5, 1.0, "the same"),
    Term("optimizer", 1.5, 0.5, "reads and writes its state once, in several passes"),
    Term("40 GB cards", 0.1, 1.0, "their rows were run with another precision setting and at another time"),
)


def at_spec(row: Published) -> list[float]:
    """Seconds of each term of one optimizer step, at the vendors' rates.

    Args:
        row: of ``llm-foundry``.
    """
    shape, card = SHAPES[row.model], gpu(row.gpu)
    width, layers, steps = shape.width, shape.layers, row.accumulation
    tokens = row.batch_per_gpu * row.seq_len
    rate, bandwidth = card.rate(row.precision), card.memory_bandwidth
    blocks = 24 * tokens * width**2 * layers
    squares = 4 * tokens * row.seq_len * width * layers
    products = (3 * blocks + 6 * tokens * VOCABULARY * width) / rate
    attention = 3.5 * squares / rate
    stream = 2 * tokens * width * layers / bandwidth
    parameters = shape.parameters(row.seq_len)
    exchanged = 3 * 2 * parameters * (row.gpus - 1) / row.gpus
    within = exchanged / (card.nvlink / 2)
    between = exchanged / 200e9  # 1600 Gbit/s for the 8 GPUs of a server: the rate of the ring that passes through it
    return [
        products * steps,
        products * steps * _NARROW / width,
        attention * steps,
        attention * steps * (width / shape.heads < _WIDE_HEAD),
        3 * stream * steps,
        2 * tokens * VOCABULARY / bandwidth * steps,
        row.checkpointing * ((blocks + squares) * 1.3 / rate + 12 * stream) * steps,
        within * steps * (row.nodes == 1),
        between * steps * (row.nodes > 1),
        _STATE_BYTES * parameters / row.gpus / bandwidth,
        (products + attention) * steps * ("40GB" in row.gpu),
    ]


def mpt_rows() -> list[Published]:
    """All published rows."""
    return [row for row in published() if row.family == "mpt"]


def study(rows: Sequence[Published] | None = None) -> tuple[Study, list[Published]]:
    """All published rows as a study, and the rows."""
    rows = mpt_rows() if rows is None else list(rows)
    times = np.array([row.gpus * row.batch_per_gpu * row.accumulation * row.seq_len / row.throughput for row in rows])
    return Study(TERMS, np.array([at_spec(row) for row in rows]), times), rows
