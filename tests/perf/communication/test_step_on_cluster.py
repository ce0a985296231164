from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from stoker.perf.catalogue import gpu
from stoker.perf.communication import PassTimes, fabric_of, refusal, spread
from stoker.perf.communication.blocks import paths_of
from stoker.perf.communication.pipeline_stages import narrowed
from stoker.perf.communication.step_on_cluster import is_measured
from stoker.perf.communication.stragglers import slowest
from stoker.perf.communication.times import layers_of
from stoker.perf.strategy import DataParallel, Machines, Strategy
from tests.perf.communication.models import convnet, decoder

DECODER = decoder()
BLOCKS = paths_of(layers_of(DECODER))
TIMES = PassTimes.measured(DECODER, 0.1)
CARDS = ("A100-80GB-SXM", "V100-16GB-SXM", "H100-SXM", "RTX-4090")
DATA: tuple[DataParallel, ...] = ("ddp", "fsdp", "zero1", "zero2", "ps", "pearl")


def machines(gpus: int, card: str = "A100-80GB-SXM", network: float = 12.5e9) -> Machines:
    return Machines(gpu=gpu(card), gpus=gpus, network=network)


@st.composite
def settings_of(draw: st.DrawFn) -> tuple[Machines, Strategy]:
    strategy = Strategy(
        data=draw(st.sampled_from(DATA)), tensor=draw(st.sampled_from([1, 2, 4])),
        pipeline=draw(st.sampled_from([1, 2])), accumulation=draw(st.integers(1, 4)),
        recomputed=draw(st.sampled_from([(), BLOCKS, BLOCKS[:1]])),
    )  # fmt: skip
    gpus = strategy.tensor * strategy.pipeline * draw(st.sampled_from([1, 2, 8]))
    return machines(gpus, draw(st.sampled_from(CARDS)), draw(st.floats(1e8, 1e11))), strategy


@settings(deadline=None)
@given(settings_of())
def test_parts_sum_to_the_step_and_the_interval_holds_it(setting: tuple[Machines, Strategy]) -> None:
    where, strategy = setting
    if refusal(DECODER, where, strategy):
        with pytest.raises(ValueError, match="`strategy` cannot be used"):
            spread(TIMES, DECODER, where, strategy)
        return
    found = spread(TIMES, DECODER, where, strategy)
    parts = found.compute_s + found.optimizer_s + found.exposed_s + found.bubble_s + found.waiting_s
    assert found.step_s == pytest.approx(parts)
    assert min(found.exposed_s, found.hidden_s, found.bubble_s, found.waiting_s) >= 0
    assert found.low <= found.step_s <= found.high


@settings(deadline=None)
@given(settings_of(), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(setting: tuple[Machines, Strategy], factor: float) -> None:
    where, strategy = setting
    if refusal(DECODER, where, strategy):
        return
    fabric = fabric_of(where.gpu, "pcie")
    faster = replace(fabric, bandwidth=fabric.bandwidth * factor)
    slow = spread(TIMES, DECODER, where, strategy, fabric=fabric)
    assert spread(TIMES, DECODER, where, strategy, fabric=faster).step_s <= slow.step_s * (1 + 1e-9)
    wider = replace(where, network=where.network * factor)
    assert spread(TIMES, DECODER, wider, strategy, fabric=fabric).step_s <= slow.step_s * (1 + 1e-9)


@pytest.mark.parametrize("data", DATA)
def test_one_gpu_is_the_step_on_one_gpu(data: DataParallel) -> None:
    found = spread(TIMES, DECODER, machines(1), Strategy(data=data))
    assert found.step_s == pytest.approx(TIMES.step_s)
    assert found.exposed_s == found.hidden_s == found.waiting_s == found.bubble_s == 0
    assert found.unvalidated == ()
    assert found.low == found.high == pytest.approx(TIMES.step_s)


def test_ddp_exchanges_once_a_step_and_fsdp_in_every_micro_batch() -> None:
    where = machines(8)

    def exchanged(data: DataParallel, accumulation: int) -> float:
        found = spread(TIMES, DECODER, where, Strategy(data=data, accumulation=accumulation))
        return found.exposed_s + found.hidden_s

    for data, times in (("ddp", 1), ("zero1", 1), ("fsdp", 4)):
        assert exchanged(data, 4) == pytest.approx(times * exchanged(data, 1)), data
    assert exchanged("zero1", 4) < exchanged("zero2", 4) < 4 * exchanged("zero2", 1)


def test_sharded_weights_are_gathered_in_the_precision_of_products() -> None:
    strategy = Strategy(data="fsdp")
    whole = spread(TIMES, DECODER, machines(8), strategy, fabric=fabric_of(gpu("A100-80GB-SXM"), "host"))
    halves = spread(
        TIMES, DECODER, machines(8), strategy, precision="bf16", fabric=fabric_of(gpu("A100-80GB-SXM"), "host")
    )
    assert (halves.exposed_s + halves.hidden_s) / (whole.exposed_s + whole.hidden_s) == pytest.approx(0.5, rel=0.05)


def test_the_optimizer_is_shared_by_shards() -> None:
    for data, share in (("ddp", 1), ("zero1", 8), ("fsdp", 8)):
        found = spread(TIMES, DECODER, machines(8), Strategy(data=data))
        assert found.optimizer_s == pytest.approx(TIMES.optimizer_s / share)


def test_a_pipeline_idles_for_stages_less_one() -> None:
    """Equal blocks in two stages: (m + 1) / m of the ideal (GPipe, section 2.3); unequal stages cost more."""
    even = decoder(blocks=8, table_bytes=0)
    times = PassTimes.measured(even, 0.1)
    found = spread(times, even, machines(2), Strategy(pipeline=2, accumulation=8))
    assert found.bubble_s / found.compute_s >= 1 / 8
    assert found.bubble_s / found.compute_s < 1 / 8 + 0.15
    assert found.compute_s == pytest.approx(times.compute_s * 8 / 2)


def test_tensor_parallelism_divides_products_and_adds_all_reduces() -> None:
    alone = spread(TIMES, DECODER, machines(1))
    two = spread(TIMES, DECODER, machines(2), Strategy(tensor=2))
    assert alone.compute_s / 2 < two.compute_s < alone.compute_s
    assert two.exposed_s > 0
    assert two.hidden_s == 0
    again = spread(TIMES, DECODER, machines(2), Strategy(tensor=2, recomputed=BLOCKS))
    assert again.exposed_s == pytest.approx(1.5 * two.exposed_s)  # the forward pass has its all-reduces again


def test_recomputation_adds_the_forward_pass_of_blocks() -> None:
    found = spread(TIMES, DECODER, machines(1), Strategy(recomputed=BLOCKS))
    blocks = TIMES.forward_s[1:-1]  # between the table and the head
    assert found.compute_s == pytest.approx(TIMES.compute_s + sum(blocks))


def test_the_host_launches_as_much_however_products_are_divided() -> None:
    """A device of 0.3 s and a host of 0.4 s take 0.5 s; halves of a device that waits for the host gain little."""
    device = PassTimes.shared(DECODER, 0.1, 0.2, 0.0)
    waiting = replace(device, host_s=0.4)
    assert waiting.step_s == pytest.approx(0.5)
    assert spread(waiting, DECODER, machines(1)).compute_s == pytest.approx(0.5)
    two = spread(waiting, DECODER, machines(2), Strategy(tensor=2))
    assert 0.4 < two.compute_s < 0.5
    free = spread(device, DECODER, machines(2), Strategy(tensor=2))
    assert free.compute_s < 0.25
    stages = spread(waiting, DECODER, machines(2), Strategy(pipeline=2, accumulation=4))
    assert stages.compute_s == pytest.approx(4 * 0.5 / 2, rel=0.05)


def test_narrow_products_are_less_efficient() -> None:
    """Of width 1024 in two: (1.27 + 0.3 x 2) / (1.27 + 0.3) of a half each."""
    assert narrowed(DECODER, 1) == 1.0
    assert narrowed(DECODER, 2) == pytest.approx(1.87 / 1.57)
    assert narrowed(convnet(), 2) == 1.0


def test_rows_of_sparse_tables_are_gathered() -> None:
    dense = spread(TIMES, DECODER, machines(2))
    rows = decoder(sparse=True)
    sparse = spread(PassTimes.measured(rows, 0.1), rows, machines(2))
    assert sparse.exposed_s + sparse.hidden_s < dense.exposed_s + dense.hidden_s


@pytest.mark.parametrize(
    ("features", "gpus", "strategy", "reason"),
    [
        (DECODER, 3, Strategy(tensor=2), "3 GPUs cannot be divided into replicas of 2 x 1"),
        (convnet(), 2, Strategy(tensor=2), "convnet has none that is told apart"),
        (convnet(), 8, Strategy(pipeline=8), "8 stages need as many parts; convnet has 1"),
        (convnet(), 2, Strategy(data="pearl"), "convnet has none"),
        (DECODER, 4, Strategy(data="fsdp", tensor=2), "fsdp together with tensor or pipeline parallelism"),
    ],
)
def test_what_is_not_known_is_refused_with_the_reason(features, gpus, strategy, reason) -> None:
    assert reason in refusal(features, machines(gpus), strategy)


@pytest.mark.parametrize(
    ("gpus", "data", "said"),
    [
        (8, "ddp", "exchange taken for an all-reduce among 8 GPUs, as it was measured on A100"),
        (8, "fsdp", "exchange taken for half the time of an all-reduce among 8 GPUs, as it was measured on A100"),
        (16, "ddp", "exchange taken for rings between servers at 70 % of what their links are said to carry"),
    ],
)
def test_what_exchange_rests_on_is_english(gpus: int, data: DataParallel, said: str) -> None:
    assert said in spread(TIMES, DECODER, machines(gpus), Strategy(data=data)).notes


def test_what_no_measurement_has_validated_is_labelled() -> None:
    def labels(gpus: int, **strategy) -> tuple[str, ...]:
        return spread(TIMES, DECODER, machines(gpus), Strategy(**strategy)).unvalidated

    assert labels(8) == labels(16, data="fsdp") == ()
    assert labels(8, data="ps") == ("parameter servers",)
    assert labels(8, data="pearl") == ("partitioned embeddings",)
    assert labels(8, data="zero2") == ("ZeRO-2",)
    assert labels(16, tensor=16) == ("tensor parallelism over servers",)
    assert labels(16, pipeline=2) == ("pipeline stages over servers",)
    # Those within a server agree with vTrain's table, which is arithmetic.
    assert labels(8, tensor=2, pipeline=2) == ("tensor parallelism", "pipeline stages")


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize(("gpus", "tensor", "pipeline"), [(1, 1, 1), (8, 1, 1), (8, 2, 1), (8, 1, 2), (8, 2, 4)])
def test_a_spread_is_measured_where_nothing_of_it_is_unvalidated(
    data: DataParallel, gpus: int, tensor: int, pipeline: int
) -> None:
    strategy = Strategy(data=data, tensor=tensor, pipeline=pipeline)
    if not refusal(DECODER, machines(gpus), strategy):
        found = spread(TIMES, DECODER, machines(gpus), strategy)
        assert is_measured(strategy, gpus) == (not found.unvalidated)


def test_rows_are_asked_for_in_each_micro_batch_and_dense_gradients_sent_once() -> None:
    def exchanged(accumulation: int) -> float:
        found = spread(TIMES, DECODER, machines(8), Strategy(data="pearl", accumulation=accumulation))
        return found.exposed_s + found.hidden_s

    assert exchanged(1) < exchanged(4) < 4 * exchanged(1)


def test_parameter_servers_take_network_and_pcie_one_after_the_other() -> None:
    """Weights and gradients and touched rows both ways, at 70 %: the network of a server is shared by its 8 workers."""
    where = machines(8)
    found = spread(TIMES, DECODER, where, Strategy(data="ps"))
    weights = DECODER.weights
    sent = weights.dense_bytes + weights.dense_gradient_bytes + 2 * weights.embedding_touched_bytes
    assert found.exposed_s == pytest.approx(sent * 8 / (12.5e9 * 0.7) + sent / (where.gpu.pcie * 0.7))


def test_features_without_operations_have_no_shares() -> None:
    with pytest.raises(ValueError, match="`features` must have operations, got none of decoder"):
        PassTimes.measured(changed(DECODER, operations=()), 0.1)


def test_features_without_layers_are_one_layer() -> None:
    blind = changed(DECODER, layers=())
    times = PassTimes.measured(blind, 0.1)
    assert len(times.forward_s) == 1
    assert spread(times, blind, machines(8)).exposed_s > spread(TIMES, DECODER, machines(8)).exposed_s
    with pytest.raises(ValueError, match="`compute` must have times of the features' 1 layers, got 26"):
        spread(TIMES, blind, machines(8))


def test_the_slowest_of_more_workers_is_slower() -> None:
    assert slowest(1, "shared") == (0.0, 0.0, 0.0)
    shares = [slowest(gpus, "shared")[0] for gpus in (2, 4, 10, 100)]
    assert shares == sorted(shares)
    # PAI's jobs 1 to 3: the slowest of 10 workers takes 1.09 to 1.12 of their mean, of job 4 1.86.
    likely, low, high = slowest(10, "shared")
    assert 0.09 <= likely <= 0.12
    assert high == pytest.approx(0.86, abs=0.01)
    assert 0 < low < likely
    with pytest.raises(ValueError, match="`gpus` must be at least 1, got 0"):
        slowest(0)


def test_factors_need_to_know_how_fast_a_rank_multiplies() -> None:
    found = decoder()
    with pytest.raises(ValueError, match="`speed` must be given to price factors"):
        spread(PassTimes.measured(found, 0.05), found, Machines(gpu=gpu("T4"), gpus=8), Strategy(data="late"))
