"""GPT under Megatron-DeepSpeed on one A100 server, split three ways: the table that vTrain published.

The table is arithmetic, not wall-clock time: its iterations are exactly linear in the number of micro-batches. So it
shows whether two models of tensor, pipeline and data parallelism agree, and never how accurate either is.

Shapes are in the model's name; 16 heads, sequences of 1,024 tokens, a vocabulary of 51,200, full recomputation (8, not
6, FLOPs per weight and token), 8 GPUs in a server (from vTrain's validation scripts). Attention writes its squares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stoker.perf.calibration.fitting import Term
from stoker.perf.catalogue import gpu
from stoker.perf.communication.sweeps import all_reduce
from stoker.perf.study.holdout import Study
from stoker.perf.study.tables.rows import Published, published

VOCABULARY, HEADS = 51_200, 16
_STATE_BYTES = 24
_WIDTH, _TOKENS = 1024, 1024
"""Units of width and tokens for narrow products, and those of few tokens."""
_LAUNCHING_S = 100e-6
"""A unit for the host's work for a layer: the coefficient says how many of them it takes."""

TERMS = (
    Term("matrix products", 1.27, 0.1, "as calibrated on MPT"),
    Term("narrow matrix products", 0.3, 0.4, "as calibrated on MPT"),
    Term("products of few tokens", 0.1, 0.7, "less than narrow ones: weights are read once for all tokens"),
    Term("attention", 2.0, 0.3, "batches of small products"),
    Term("softmax", 6.0, 0.4, "squares that are read or written, in 16 bits, over all passes"),
    Term("pointwise", 6.0, 0.4, "with what is split among ranks, a little more than calibrated on MPT"),
    Term("pointwise, split", 6.0, 0.4, "the same"),
    Term("exchange of tensors", 1.2, 0.2, "measured all-reduces, one after another"),
    Term("output layer", 1.5, 0.2, "a product of odd width"),
    Term("exchange of stages", 1.0, 0.5, "a tensor of tokens x width for each pass and direction"),
    Term("exchange of gradients", 1.0, 0.3, "one measured all-reduce, after the last micro-batch", "alone"),
    Term("optimizer", 1.3, 0.3, "as calibrated on MPT", "alone"),
    Term("launching", 30.0, 0.4, "some hundred kernels a layer, forward, again and backward, 10 us each", "host"),
    Term("launching of split layers", 3.0, 0.7, "collectives are launched as well", "host"),
    Term("loss", 14.0, 0.4, "as calibrated on MPT"),
)


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model and how it is split."""

    layers: int
    width: int
    tensor: int
    data: int
    pipeline: int


_MODEL = re.compile(r"GPT L(\d+) h(\d+) a16")
_SHARDING = re.compile(r"TP(\d+) DP(\d+) PP(\d+)")


def plan_of(row: Published) -> ModelPlan:
    """What a row of ``vtrain-single`` ran."""
    model, sharding = _MODEL.fullmatch(row.model), _SHARDING.fullmatch(row.sharding)
    if model is None or sharding is None:
        raise ValueError(f"`row` must be one of vtrain-single, got {row.model} / {row.sharding}")
    layers, width = map(int, model.groups())
    tensor, data, pipeline = map(int, sharding.groups())
    return ModelPlan(layers, width, tensor, data, pipeline)


def at_spec(row: Published) -> list[float]:
    """Seconds of each term of one iteration, at the vendors' rates and as measured for all-reduces.

    A pipeline of p stages takes m + p - 1 passes for m micro-batches (GPipe, arXiv 1811.06965, section 2.3).
    """
    plan, card = plan_of(row), gpu(row.gpu)
    rate, bandwidth = card.rate(row.precision), card.memory_bandwidth
    split, width = plan.tensor, plan.width
    tokens = row.batch_per_gpu * row.seq_len
    passes = row.accumulation + plan.pipeline - 1
    layers = plan.layers / plan.pipeline * passes
    products = 4 * 24 * tokens * width**2 * layers / split / rate
    squares = tokens * row.seq_len * layers / split
    stream = 4 * 2 * tokens * width * layers / bandwidth
    weights = (12 * plan.layers * width**2 / plan.pipeline + VOCABULARY * width) / split

    last = row.accumulation * tokens * VOCABULARY / split
    launching = _LAUNCHING_S * layers
    return [
        products,
        products * _WIDTH * split / width,
        products * _TOKENS / tokens,
        4 * 4 * squares * width / rate,
        3 * 2 * squares * HEADS / bandwidth,
        stream,
        stream / split,
        6 * all_reduce("A100", split, 2 * tokens * width) * layers,
        6 * last * width / rate,
        (plan.pipeline > 1) * 2 * passes * 2 * tokens * width / (card.nvlink / 2),
        all_reduce("A100", plan.data, 2 * weights),
        _STATE_BYTES * weights / bandwidth,
        launching,
        launching * (split > 1),
        4 * last / bandwidth,
    ]


def study() -> tuple[Study, list[Published]]:
    """The table as a study, and its rows."""
    rows = [row for row in published() if row.source == "vtrain-single"]
    return Study(TERMS, np.array([at_spec(row) for row in rows]), np.array([row.step_s for row in rows])), rows
