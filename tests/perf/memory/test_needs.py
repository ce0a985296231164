from dataclasses import replace as replace_strategy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.perf.catalogue import gpu
from stoker.perf.communication.blocks import paths_of
from stoker.perf.memory import PARTS, capacity, fits, needs
from stoker.perf.memory.resident import quickest_blocks
from stoker.perf.strategy import DataParallel, Machines, Strategy
from stoker.perf.study.decoders import decoder
from stoker.perf.study.tables.rows import Published, published
from stoker.perf.study.workloads.mpt import SHAPES, VOCABULARY
from tests.perf.communication.models import decoder as tables

GB = 1e9
MPT = [row for row in published() if row.family == "mpt"]
SMALL = decoder(1024, 8, 50_000, 4, 512)


def mpt(row: Published, *, recomputed: bool):
    shape = SHAPES[row.model]
    features = decoder(shape.width, shape.layers, VOCABULARY, int(row.batch_per_gpu), row.seq_len)
    blocks = paths_of(features.layers) if recomputed else ()
    strategy = Strategy(data="fsdp", accumulation=row.accumulation, recomputed=blocks)
    return fits(features, Machines(gpu=gpu(row.gpu), gpus=row.gpus), strategy, precision="bf16")


def test_all_published_mpt_rows_are_judged_to_fit() -> None:
    """139 rows, most with the largest micro-batch that their card holds; the fullest needs 96 % of it."""
    assert len(MPT) == 139
    found = {row: mpt(row, recomputed=row.checkpointing) for row in MPT}
    assert [row for row, fit in found.items() if not fit] == []
    assert max(fit.needed / fit.available for fit in found.values()) > 0.9


def test_rows_that_recomputed_would_not_fit_without() -> None:
    checkpointed = [row for row in MPT if row.checkpointing]
    assert len(checkpointed) == 49
    assert sum(not mpt(row, recomputed=False) for row in checkpointed) == 49


STATES = ("weights", "gradients", "optimizer")


@pytest.mark.parametrize(
    ("data", "gigabytes"),
    [("ddp", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("fsdp", 1.9)],
    ids=lambda value: str(value),
)
def test_the_example_of_zero(data: DataParallel, gigabytes: float) -> None:
    """7.5 B parameters on 64 GPUs, 16 bytes each: weights and gradients in 16 bits, fp32 copy and Adam (figure 1)."""
    features = decoder(4096, 36, 50_000, 1, 512, weight_bytes=2)
    weights = replace(
        features.weights, dense_count=int(7.5e9), dense_bytes=int(15e9), dense_gradient_bytes=int(15e9),
        optimizer_bytes=int(60e9),
    )  # fmt: skip
    whole = features.layers[0]
    layer = replace(whole, dense_bytes=int(15e9), dense_gradient_bytes=int(15e9))
    features = replace(features, weights=weights, layers=(layer,))
    parts, _ = needs(features, Strategy(data=data), 64, precision="fp16", master_copies=True)
    assert sum(parts[name] for name in STATES) / GB == pytest.approx(gigabytes, abs=0.05)


def test_gpt2_keeps_24_gb_and_its_activations_fall_from_60_to_8() -> None:
    """1.5 B, batch 32 of 1,024 tokens (ZeRO, sections 3.1 and 3.2): 60 GB at 24 bytes where 32 are counted here."""
    features = decoder(1600, 48, 50_257, 32, 1024, weight_bytes=2)
    parts, _ = needs(features, Strategy(), precision="fp16", master_copies=True)
    assert sum(parts[name] for name in STATES) / GB == pytest.approx(24, rel=0.08)
    blocks = sum(layer.saved_bytes for layer in features.layers if layer.module.startswith("blocks"))
    assert blocks / GB * 24 / 32 == pytest.approx(60, rel=0.02)
    again, _ = needs(features, Strategy(recomputed=paths_of(features.layers)), precision="fp16", master_copies=True)
    loss = features.layers[-1].saved_bytes
    # The loss is gone by the time at which a block is whole again.
    assert (again["activations"] - loss + blocks / 48) / GB == pytest.approx(8, rel=0.2)


def test_llama_7b_in_fp32_with_adam_does_not_fit_into_80_gb() -> None:
    features = decoder(4096, 32, 32_000, 1, 512)
    card = Machines(gpu=gpu("A100-80GB-SXM"), gpus=1)
    fit = fits(features, card)
    assert not fit
    assert fit.missing == pytest.approx(fit.needed - capacity(card.gpu))
    assert fits(features, Machines(gpu=card.gpu, gpus=8), Strategy(data="fsdp"))


def test_buckets_of_ddp_are_copies_of_the_gradients() -> None:
    """ResNet-50 needed 101 MB less where gradients are views of them (pytorch/pytorch pull request 41954)."""
    alone, _ = needs(SMALL, Strategy())
    two, _ = needs(SMALL, Strategy(), 2)
    assert alone["buffers"] == 0
    assert two["buffers"] == two["gradients"]
    resnet50 = 25.6e6 * 4
    assert resnet50 / 1e6 == pytest.approx(101, rel=0.02)


@given(st.sampled_from(["ddp", "zero1", "zero2", "fsdp"]), st.sampled_from([1, 2, 4, 8, 64]), st.booleans())
def test_parts_sum_up_and_more_shards_never_need_more(data: DataParallel, gpus: int, recomputed: bool) -> None:
    blocks = paths_of(SMALL.layers)
    strategy = Strategy(data=data, recomputed=blocks if recomputed else ())
    fit = fits(SMALL, Machines(gpu=gpu("A10"), gpus=gpus), strategy)
    assert fit.needed == pytest.approx(sum(fit.parts.values()))
    assert tuple(fit.parts) == PARTS
    twice = fits(SMALL, Machines(gpu=gpu("A10"), gpus=2 * gpus), strategy)
    if gpus > 1:
        assert twice.needed <= fit.needed
    again = fits(SMALL, Machines(gpu=gpu("A10"), gpus=gpus), Strategy(data=data, recomputed=blocks))
    assert again.needed <= fit.needed


@given(st.integers(1, 64))
def test_activations_grow_with_the_batch_and_weights_do_not(batch_size: int) -> None:
    parts, notes = needs(SMALL, Strategy(), batch_size=batch_size)
    own, _ = needs(SMALL, Strategy())
    assert parts["activations"] == pytest.approx(own["activations"] * batch_size / SMALL.batch_size)
    assert all(parts[name] == own[name] for name in STATES)
    assert bool(notes) == (batch_size != SMALL.batch_size)


def test_tensor_and_pipeline_parallelism_divide_a_replica() -> None:
    whole, _ = needs(SMALL, Strategy())
    halves, _ = needs(SMALL, Strategy(tensor=2), 2)
    assert halves["weights"] == pytest.approx(whole["weights"] / 2, rel=0.35)
    stages, _ = needs(SMALL, Strategy(pipeline=4), 4)
    assert stages["weights"] < whole["weights"] / 2
    full, _ = needs(SMALL, Strategy(pipeline=4, accumulation=4), 4)
    assert full["activations"] > stages["activations"]  # the first stages have several micro-batches open


def test_a_peak_in_the_optimizer_is_shared_by_its_shards() -> None:
    """Adam over all tensors at once makes copies as large as the weights: more than a small batch keeps."""
    temporaries = 8 * sum(layer.saved_bytes for layer in SMALL.layers)
    peaked = replace(SMALL, activation_peak_bytes=temporaries)
    alone, _ = needs(peaked, Strategy(data="fsdp"))
    shared, _ = needs(peaked, Strategy(data="fsdp"), 64)
    assert alone["activations"] == temporaries
    assert shared["activations"] < alone["activations"] / 2


def test_partitioned_tables_are_divided_and_servers_keep_them() -> None:
    """A table of 64 GiB beside a head that is as large: on 8 GPUs 8 GiB of each part that partitioning divides."""
    features = tables(table_bytes=64 << 30)
    dense = features.weights.dense_bytes
    whole, _ = needs(features, Strategy(), 8)
    split, _ = needs(features, Strategy(data="pearl"), 8)
    assert split["weights"] == pytest.approx(dense + 8 * 2**30)
    assert split["gradients"] == pytest.approx(dense + 8 * 2**30)
    assert split["optimizer"] == pytest.approx(2 * (dense + 8 * 2**30))
    assert split["buffers"] == pytest.approx(dense)
    assert whole["weights"] - split["weights"] == pytest.approx(7 * 8 * 2**30)
    worker, _ = needs(features, Strategy(data="ps"), 8)
    assert worker["optimizer"] == 0
    assert worker["weights"] == pytest.approx(dense + features.weights.embedding_touched_bytes)


@given(st.integers(1, 40), st.sampled_from([1, 2, 4]))
def test_the_quickest_blocks_fit_and_all_of_them_are_the_last_resort(share: int, stages: int) -> None:
    strategy = Strategy(pipeline=stages)
    whole, _ = needs(SMALL, strategy, stages)
    least, _ = needs(SMALL, replace_strategy(strategy, recomputed=paths_of(SMALL.layers)), stages)
    room = whole["activations"] * share / 40
    found = quickest_blocks(SMALL, strategy, room)
    if stages == 1:
        assert (found is None) == (room < least["activations"] * (1 - 1e-9))
    if found is not None:
        parts, _ = needs(SMALL, replace_strategy(strategy, recomputed=found), stages)
        assert parts["activations"] <= room * (1 + 1e-6)
        assert found or whole["activations"] <= room * (1 + 1e-6)


def test_capacities_are_what_programs_see() -> None:
    """GiB in PyTorch's out-of-memory errors."""
    seen = {"H100-SXM": 79.15, "A100-40GB-SXM": 39.59, "V100-16GB-SXM": 15.78, "T4": 14.75, "RTX-3090": 23.70}
    for name, gibibytes in seen.items():
        assert capacity(gpu(name)) / 2**30 <= gibibytes * 1.01, name
        assert capacity(gpu(name)) / 2**30 >= gibibytes * 0.92, name


def test_gpus_that_cannot_be_divided_are_an_error() -> None:
    with pytest.raises(ValueError, match="`gpus` must be a multiple of 2 x 1, got 3"):
        needs(SMALL, Strategy(tensor=2), 3)
