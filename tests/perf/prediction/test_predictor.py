"""A step's prediction: its parts, its interval, its tier, what a measured step does to it."""

from __future__ import annotations

import gc
import math
import sys
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.catalogue import catalogue, gpu
from stoker.perf.communication.blocks import paths_of
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import StepFeatures, Unknown
from stoker.perf.prediction import setting
from stoker.perf.prediction.anchor import Anchor
from stoker.perf.prediction.calibrated import calibration
from stoker.perf.prediction.intervals import interval
from stoker.perf.prediction.predictor import Predictor, predict
from stoker.perf.prediction.terms import Stack, unit_times
from stoker.perf.prediction.work_vector import work_of
from stoker.perf.strategy import DataParallel, Machines, Strategy
from tests.perf.communication.models import decoder
from tests.perf.prediction.features import operation, product, step, training

A100 = gpu("A100-80GB-SXM")
STEP = training()
BLOCKS = paths_of(layers_of(STEP))


def test_one_gpu_takes_what_the_calibration_says_and_exchanges_nothing() -> None:
    found = predict(STEP, Machines(gpu=A100))
    work = work_of(STEP.operations) @ unit_times(A100, "fp16", Stack())
    assert found.seconds == pytest.approx(float(calibration().seconds(work[None])[0]))
    assert found.parts["communication"] == found.parts["other"] == found.hidden_s == 0
    assert (found.tier, found.share, found.reasons) == ("calibrated", 0.9, ())
    below, above = interval("card", anchored=False, doubt=float(calibration().doubts(work[None])[0]))
    assert found.low == pytest.approx(found.seconds * below)
    assert found.high == pytest.approx(found.seconds * above)


def test_a_step_of_what_no_measurement_showed_has_a_wider_interval() -> None:
    """No calibrated program looks up rows of tables; many multiply matrices."""
    tables = step(operation("embedding", eager_bytes=8e10), product())
    known, unknown = (predict(each, Machines(gpu=A100)) for each in (STEP, tables))
    assert unknown.high / unknown.low > 1.3 * known.high / known.low
    seconds = unknown.seconds
    measured = Anchor(gpu=A100.name, gpus=1, seconds=seconds, low=seconds, high=seconds, precision="fp16")
    anchored = predict(tables, Machines(gpu=A100), anchor=measured)
    below, above = interval("card", anchored=True)  # of what is measured nothing is doubted
    assert (anchored.low, anchored.high) == pytest.approx((anchored.seconds * below, anchored.seconds * above))


def test_the_names_that_were_documented_first_still_work() -> None:
    assert (setting.Machines, setting.Strategy) == (Machines, Strategy)


def test_a_prediction_leaves_nothing_behind() -> None:
    """What the questions of a planner have in common is held by its predictor, and goes with it."""
    asked, machines, strategy = decoder(), Machines(gpu=A100, gpus=8), Strategy(tensor=2)
    measured = Anchor(gpu=A100.name, gpus=8, seconds=0.02, low=0.02, high=0.02)
    held = sys.getrefcount(asked), sys.getrefcount(measured)
    predictor = Predictor(anchor=measured)
    first, again = (predictor.predict(asked, machines, strategy) for _ in range(2))
    assert first == again == predict(asked, machines, strategy, anchor=measured)
    assert not any("not used" in reason for reason in first.reasons), "the measured step must have moved it"
    del predictor
    gc.collect()
    assert (sys.getrefcount(asked), sys.getrefcount(measured)) == held


def test_a_predictor_knows_programs_apart() -> None:
    """Also those that come where another was: more than it keeps, none of which is held by anybody else."""
    predictor, machines = Predictor(), Machines(gpu=A100)
    for count in range(1, 50):
        found = predictor.predict(step(product(count=count, flops=count * 1e11)), machines)
        assert found == predict(step(product(count=count, flops=count * 1e11)), machines)


@given(
    name=st.sampled_from(sorted(catalogue())),
    gpus=st.sampled_from([1, 2, 8, 16]),
    accumulation=st.integers(1, 4),
    recomputed=st.booleans(),
    data=st.sampled_from(["ddp", "fsdp", "zero1"]),
)
def test_parts_sum_to_the_step(name: str, gpus: int, accumulation: int, recomputed: bool, data: str) -> None:
    paths = BLOCKS if recomputed else ()
    strategy = Strategy(data=data, accumulation=accumulation, recomputed=paths)  # type: ignore[arg-type]
    found = predict(STEP, Machines(gpu=gpu(name), gpus=gpus), strategy)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert min(found.parts.values()) >= 0
    assert found.low <= found.seconds <= found.high
    if gpus == 1:
        assert found.parts["communication"] == 0


@given(faster=st.floats(1.0, 20.0), gpus=st.sampled_from([16, 64]))
def test_a_faster_network_is_never_slower(faster: float, gpus: int) -> None:
    slow = predict(STEP, Machines(gpu=A100, gpus=gpus, network=1e9))
    fast = predict(STEP, Machines(gpu=A100, gpus=gpus, network=1e9 * faster))
    assert fast.seconds <= slow.seconds * (1 + 1e-12)


def test_micro_batches_share_one_optimizer_step() -> None:
    one, four = (predict(STEP, Machines(gpu=A100), Strategy(accumulation=count)) for count in (1, 4))
    assert four.parts["compute"] == pytest.approx(4 * one.parts["compute"])
    assert four.parts["optimizer"] == pytest.approx(one.parts["optimizer"])


def test_sharding_the_optimizer_saves_no_launches() -> None:
    """A step that waits for the host mostly: who keeps a share of the states launches as many kernels."""
    small = step(
        product(flops=1e6, eager_bytes=1e3, count=100),
        product(flops=1e6, eager_bytes=1e3, count=200, phase="backward", module="blocks.1"),
        operation("pointwise", phase="optimizer", dtype="float32", eager_bytes=4e5, fused_bytes=2e5, count=100),
    )
    plain, sharded = (predict(small, Machines(gpu=A100, gpus=8), Strategy(data=d)) for d in ("ddp", "zero1"))
    assert sharded.parts["host"] == pytest.approx(plain.parts["host"])
    assert sharded.parts["host"] > 10 * sharded.parts["compute"]
    assert sharded.parts["optimizer"] < plain.parts["optimizer"]


def test_recomputing_activations_takes_another_forward_pass() -> None:
    plain, again = (predict(STEP, Machines(gpu=A100), Strategy(recomputed=paths)) for paths in ((), BLOCKS))
    assert 1.1 < again.seconds / plain.seconds < 1.5


def test_what_no_measurement_stands_behind_is_less_sure() -> None:
    measured, generation, paper = (predict(STEP, Machines(gpu=gpu(n))) for n in ("H100-SXM", "H200-SXM", "B200-SXM"))
    assert [found.tier for found in (measured, generation, paper)] == ["calibrated", "calibrated", "extrapolated"]
    widths = [found.high / found.low for found in (measured, generation, paper)]
    assert widths == sorted(widths)
    assert widths[0] < widths[1]
    assert "no step on H200-SXM" in generation.reasons[0]
    assert "no step on any blackwell GPU" in paper.reasons[0]
    sharded = predict(STEP, Machines(gpu=A100, gpus=8), Strategy(data="zero1"))
    assert sharded.tier == "extrapolated"
    assert any(reason.startswith("unvalidated: ") for reason in sharded.reasons)


def test_operations_without_a_formula_are_told_or_refuse_it() -> None:
    few, many = (Unknown(name="mystery", count=1, bytes=size, where="train.py:3") for size in (1e6, 1e10))
    found = predict(step(*STEP.operations, unknown=(few,)), Machines(gpu=A100))
    assert "mystery: without a formula, not counted" in found.reasons
    refused = predict(step(*STEP.operations, unknown=(many,)), Machines(gpu=A100))
    assert refused.tier == "refused"
    assert math.isnan(refused.seconds)
    assert "mystery (train.py:3)" in refused.reasons[0]


def test_a_precision_that_the_card_lacks_is_refused() -> None:
    refused = predict(STEP, Machines(gpu=gpu("V100-16GB-SXM")), precision="bf16")
    assert refused.reasons == ("V100-16GB-SXM has no bf16; it has fp32, fp16",)


def test_eight_bits_are_faster_for_products_and_extrapolated() -> None:
    h100 = Machines(gpu=gpu("H100-SXM"))
    wide, narrow = (predict(STEP, h100, precision=precision) for precision in ("bf16", "fp8"))
    assert 0.5 * wide.parts["compute"] < narrow.parts["compute"] < 0.7 * wide.parts["compute"]
    assert narrow.parts["memory"] == pytest.approx(wide.parts["memory"], rel=0.01)
    assert (wide.tier, narrow.tier) == ("calibrated", "extrapolated")
    assert narrow.high / narrow.low > wide.high / wide.low
    assert "no step in FP8" in narrow.reasons[0]
    assert predict(STEP, Machines(gpu=A100), precision="fp8").reasons[0].startswith("A100-80GB-SXM has no fp8")
    attention = step(operation("attention", dims=(8, 16, 1024, 1024, 64), flops=1e12, eager_bytes=1e6))
    same = [predict(attention, h100, precision=precision).parts["compute"] for precision in ("bf16", "fp8")]
    assert same[1] == pytest.approx(same[0], rel=0.35), "its kernels stay in 16 bits"


def test_a_program_without_work_takes_no_time() -> None:
    assert predict(step(operation("pointwise", count=0)), Machines(gpu=A100)).seconds == 0


@given(slower=st.floats(0.3, 4.0))
def test_a_measured_step_is_predicted_as_it_was(slower: float) -> None:
    plain = predict(STEP, Machines(gpu=A100)).seconds
    seconds = plain * slower
    anchor = Anchor(gpu="A100-80GB-SXM", gpus=1, seconds=seconds, low=seconds, high=seconds, precision="fp16")
    assert predict(STEP, Machines(gpu=A100), anchor=anchor).seconds == pytest.approx(seconds)
    elsewhere = predict(STEP, Machines(gpu=gpu("V100-32GB-SXM")), anchor=anchor)
    unanchored = predict(STEP, Machines(gpu=gpu("V100-32GB-SXM")))
    assert (elsewhere.seconds - unanchored.seconds) * (slower - 1) >= -1e-9
    assert elsewhere.high / elsewhere.low < unanchored.high / unanchored.low


def accumulated(times: int) -> StepFeatures:
    """The step whose program computes so many such batches before its optimizer steps."""
    return msgspec.structs.replace(
        STEP, batch_size=STEP.batch_size * times, micro_batches=times, input_bytes=STEP.input_bytes * times,
        operations=tuple(
            each if each.phase == "optimizer" else msgspec.structs.replace(
                each, count=each.count * times, flops=each.flops * times, eager_bytes=each.eager_bytes * times,
                fused_bytes=each.fused_bytes * times, fused_count=each.fused_count * times,
            )
            for each in STEP.operations
        ),
    )  # fmt: skip


@pytest.mark.parametrize("data", ["ddp", "fsdp", "zero2"])
def test_micro_batches_of_the_program_are_those_of_a_strategy(data: DataParallel) -> None:
    """Whether the program accumulates or the planner has it do so, the same step takes the same time."""
    machines = Machines(gpu=A100, gpus=8)
    planned = predict(STEP, machines, Strategy(data=data, accumulation=4))
    written = predict(accumulated(4), machines, Strategy(data=data))
    both = predict(accumulated(2), machines, Strategy(data=data, accumulation=2))
    for found in (written, both):
        assert found.seconds == pytest.approx(planned.seconds)
        assert found.parts == pytest.approx(planned.parts)


def test_gradients_are_exchanged_once_however_many_micro_batches() -> None:
    link = Machines(gpu=A100, gpus=16, network=1e9)  # slow enough that next to nothing hides
    once, often = (predict(features, link).parts["communication"] for features in (STEP, accumulated(8)))
    assert often == pytest.approx(once, rel=0.05)


def test_one_micro_batch_of_a_step() -> None:
    assert accumulated(4).one_micro_batch() == STEP
    assert STEP.one_micro_batch() is STEP


def test_an_anchor_of_another_batch_than_the_predicted_one() -> None:
    """Twice as slow as predicted on a step of four micro-batches: twice as slow on one as well."""
    machines = Machines(gpu=A100)
    seconds = 2 * predict(accumulated(4), machines).seconds
    anchor = Anchor(
        gpu=A100.name, gpus=1, seconds=seconds, low=seconds, high=seconds, precision="fp16", features=accumulated(4)
    )
    assert predict(accumulated(4), machines, anchor=anchor).seconds == pytest.approx(seconds)
    assert predict(STEP, machines, anchor=anchor).seconds == pytest.approx(2 * predict(STEP, machines).seconds, rel=0.1)


def on_several(seconds: float, gpus: int = 8, **parts: float) -> Anchor:
    return Anchor(
        gpu=A100.name, gpus=gpus, seconds=seconds, low=seconds, high=seconds, precision="fp16", features=STEP,
        parts=parts,
    )  # fmt: skip


@given(slower=st.floats(0.8, 3.0), gpus=st.sampled_from([2, 8]))
def test_a_step_measured_on_several_gpus_is_predicted_as_it_was(slower: float, gpus: int) -> None:
    """It was thrown away, and most users have no other."""
    there, alone = Machines(gpu=A100, gpus=gpus), Machines(gpu=A100)
    seconds = slower * predict(STEP, there).seconds
    found = predict(STEP, there, anchor=on_several(seconds, gpus))
    assert found.seconds == pytest.approx(seconds, rel=0.02)
    assert found.high / found.low < predict(STEP, there).high / predict(STEP, there).low
    assert any("was not timed" in reason for reason in found.reasons)
    ratio = predict(STEP, alone, anchor=on_several(seconds, gpus)).seconds / predict(STEP, alone).seconds
    assert (ratio - 1) * (slower - 1) >= -1e-9
    assert abs(math.log(ratio)) >= 0.5 * abs(math.log(slower))


def test_of_a_step_on_several_gpus_its_own_work_counts() -> None:
    alone_s = predict(STEP, Machines(gpu=A100)).seconds
    timed = on_several(4 * alone_s, input=0.5 * alone_s, communication=1.5 * alone_s, compute=2 * alone_s)
    assert timed.own_s == pytest.approx(2 * alone_s)
    found = predict(STEP, Machines(gpu=A100), anchor=timed)
    assert found.seconds == pytest.approx(2 * alone_s)
    assert not any("measured step" in reason for reason in found.reasons)


def test_a_step_that_only_waited_is_not_used() -> None:
    alone_s = predict(STEP, Machines(gpu=A100)).seconds
    waited = on_several(10 * alone_s, communication=9 * alone_s, compute=alone_s)
    found = predict(STEP, Machines(gpu=A100), anchor=waited)
    assert found.seconds == alone_s
    assert "waited for input and exchange" in found.reasons[0]


def test_a_residual_is_the_programs_in_part_and_the_cards_in_part() -> None:
    """All of it on the card where it was measured; less elsewhere, and least where exchange was not told apart."""
    elsewhere = Machines(gpu=gpu("H100-SXM"))
    seconds = 2 * predict(STEP, Machines(gpu=A100)).seconds
    plain = predict(STEP, elsewhere).seconds
    told = [
        predict(STEP, elsewhere, anchor=anchor).seconds / plain
        for anchor in (on_several(2 * predict(STEP, Machines(gpu=A100, gpus=8)).seconds), on_several(seconds, gpus=1))
    ]
    assert 1.05 < told[0] < told[1] < 1.85


def test_a_measured_step_of_another_program_is_refused() -> None:
    other = msgspec.structs.replace(STEP, weights=msgspec.structs.replace(STEP.weights, dense_count=1))
    with pytest.raises(ValueError, match="`anchor` must be a measured step of made by hand"):
        predict(STEP, Machines(gpu=A100), anchor=replace(on_several(1.0), features=other))


def test_a_step_on_a_cpu_says_nothing_about_a_gpu() -> None:
    anchor = Anchor(gpu="cpu", gpus=1, seconds=1.0, low=1.0, high=1.0)
    found = predict(STEP, Machines(gpu=A100), anchor=anchor)
    assert found.seconds == predict(STEP, Machines(gpu=A100)).seconds
    assert "ran on a CPU" in found.reasons[0]


def test_the_stack_is_what_was_traced() -> None:
    """Both were eager and channels first, whatever the program did."""
    image = operation("conv", dims=(64, 256, 256, 1, 9, 3136), flops=1e12, eager_bytes=4e8)
    plain = step(image, operation("pointwise", eager_bytes=9e9, fused_bytes=2e9, count=40, fused_count=10))
    eager = predict(plain, Machines(gpu=A100)).seconds
    for field in ("compiled", "channels_last"):
        traced = predict(msgspec.structs.replace(plain, **{field: True}), Machines(gpu=A100)).seconds
        assert traced < eager
        assert traced == predict(plain, Machines(gpu=A100), stack=Stack(**{field: True})).seconds


def test_a_card_of_the_users_own() -> None:
    mine = replace(A100, name="mine", memory_bandwidth=2 * A100.memory_bandwidth)
    found = predict(step(product()), Machines(gpu=mine))
    assert found.tier == "calibrated"  # of a known generation
    assert found.seconds > 0


def test_late_multiply_is_priced_with_its_products_and_is_not_called_measured() -> None:
    """Two layers of 5000 x 5000 and 32 rows over 1 Gbit/s: 16 ranks send 15 x 32 x 10,000 numbers for 25,000,000."""
    sizes = {"dims": (1, 32, 5000, 5000), "flops": 2.0 * 32 * 5000**2, "eager_bytes": 5e7}
    head = step(*(product(module=f"blocks.{place}", **sizes) for place in range(2)))
    slow = Machines(gpu=A100, gpus=16, gpus_per_node=1, network=0.125e9)
    plain, late = (predict(head, slow, Strategy(data=data)) for data in ("ddp", "late"))
    assert 5 * late.seconds < plain.seconds
    assert (plain.tier, late.tier) == ("calibrated", "extrapolated")
    assert "unvalidated: late-multiply" in late.reasons
    twice = predict(head, slow, Strategy(data="late", accumulation=2))
    assert twice.parts["communication"] > 1.5 * late.parts["communication"]  # rows of both micro-batches are sent
    assert predict(head, Machines(gpu=A100), Strategy(data="late")).seconds == predict(head, Machines(gpu=A100)).seconds
    cut = predict(head, slow, Strategy(data="late", pipeline=2))
    assert (cut.tier, cut.reasons) == (
        "refused",
        ("late together with tensor or pipeline parallelism is not modelled",),
    )
