"""Steps predicted from rates."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.perf.features.records import Operation, StepFeatures, Unknown, Weights
from stoker.perf.machine import predict_step
from stoker.perf.machine.prediction import cold_share, predicted_lines
from stoker.perf.machine.speed import Speed
from tests.perf.machine.rates_of_old import COLD, FLOPS, START_S, WARM, made_rates

SPEED = Speed(made_rates())


def product(m: int, n: int, *, count: int = 1, phase: str = "forward", dtype: str = "float32") -> Operation:
    return Operation(
        name="mm", kind="matmul", phase=phase, dtype=dtype, dims=(1, m, n, n), module="", count=count,
        flops=2.0 * m * n * n * count, eager_bytes=4.0 * (2 * m * n + n * n) * count, fused_bytes=0.0, fused_count=0,
    )  # type: ignore[arg-type]  # fmt: skip


def pointwise(name: str, size: int, *, tensors: int = 2, count: int = 1, phase: str = "forward") -> Operation:
    return Operation(
        name=name, kind="pointwise", phase=phase, dtype="float32", dims=(size,), module="", count=count,
        flops=float(size * count), eager_bytes=4.0 * tensors * size * count, fused_bytes=0.0, fused_count=0,
    )  # type: ignore[arg-type]  # fmt: skip


def step_of(*operations: Operation, peak: int = 10_000_000, target: str = "cpu") -> StepFeatures:
    weights = Weights(
        dense_count=0, embedding_count=0, dense_bytes=0, embedding_bytes=0, dense_gradient_bytes=0,
        embedding_gradient_bytes=0, embedding_touched_bytes=0, optimizer_bytes=0,
    )  # fmt: skip
    return StepFeatures(
        name="step", target=target, batch_size=4, operations=operations, weights=weights, input_bytes=16,
        activation_peak_bytes=peak, peak_bytes=peak,
    )  # fmt: skip


def test_a_step_is_the_sum_of_its_operations_and_of_the_hosts_work() -> None:
    found = predict_step(step_of(product(256, 300), product(256, 300, phase="backward", count=2)), SPEED)
    one = START_S + 2 * 256 * 300 * 300 / FLOPS + 4 * (2 * 256 * 300 + 300 * 300) / WARM
    assert found.parts["compute"] == pytest.approx(3 * one, rel=0.35)  # half of it is cold
    assert found.parts["host"] == pytest.approx(5e-6 + 2 * 4e-6)
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert found.low < found.seconds < found.high
    assert found.tier == "calibrated"


@settings(deadline=None)
@given(st.integers(16, 1024), st.integers(16, 1024), st.integers(100, 1_000_000))
def test_what_follows_a_roofline_is_found_again(m: int, n: int, size: int) -> None:
    small = predict_step(step_of(product(m, n), pointwise("relu", size), peak=1000), SPEED)
    expected = 2 * START_S + 2.0 * m * n * n / FLOPS + (4.0 * (2 * m * n + n * n) + 8.0 * size) / WARM + 2 * 5e-6
    assert small.seconds == pytest.approx(expected, rel=0.12)


@settings(deadline=None)
@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_more_memory_is_never_faster(one: int, other: int) -> None:
    operations = (product(200, 200), pointwise("add", 500_000, tensors=3), pointwise("add", 9, phase="optimizer"))
    times = [predict_step(step_of(*operations, peak=peak), SPEED).seconds for peak in sorted((one, other))]
    assert times[0] <= times[1] * (1 + 1e-9)


def test_cold_tensors_come_from_memory() -> None:
    cold = predict_step(step_of(pointwise("relu", 1_000_000), peak=10**9), SPEED)
    assert cold.parts["memory"] == pytest.approx(START_S + 8e6 / COLD, rel=0.05)
    at = [(32 << 20) * part for part in (0, 1 / 64, (1 / 128) ** 0.5, 1 / 2, 100)]
    assert [cold_share(SPEED.rates, "forward", size) for size in at] == pytest.approx([0, 0, 0.5, 1, 1])


def test_an_operation_that_was_not_measured_is_charged_for_its_bytes_and_named() -> None:
    found = predict_step(step_of(pointwise("wobble", 500_000, tensors=3), peak=1000), SPEED)
    assert found.seconds == pytest.approx(START_S + 6e6 / WARM + 5e-6, rel=0.05)
    assert found.tier == "extrapolated"
    assert found.reasons == ("wobble at such sizes was not measured (100% of the time)",)
    measured = predict_step(step_of(pointwise("add", 500_000, tensors=3), peak=1000), SPEED)
    assert found.high / found.low > measured.high / measured.low


def test_far_beyond_the_measured_sizes_is_extrapolated() -> None:
    assert predict_step(step_of(product(1_000_000, 16)), SPEED).tier == "extrapolated"


def test_operations_without_a_formula_are_named() -> None:
    step = step_of(pointwise("add", 10_000, tensors=3))
    step = msgspec.structs.replace(step, unknown=(Unknown(name="fft", count=1, bytes=8.0, where="t.py:1"),))
    assert predict_step(step, SPEED).reasons == ("fft has no formula: charged for its bytes",)


def test_what_was_not_measured_is_refused() -> None:
    assert predict_step(step_of(product(8, 8), target="cuda"), SPEED).tier == "refused"
    half = predict_step(step_of(product(8, 8, dtype="bfloat16")), SPEED)
    assert half.tier == "refused"
    assert "bfloat16" in half.reasons[0]


def test_lines_sum_to_the_step() -> None:
    step = step_of(product(64, 64), pointwise("add", 1000, tensors=3, phase="optimizer", count=3))
    lines = predicted_lines(step, SPEED)
    assert sum(line.seconds + line.host_s for line in lines) == pytest.approx(predict_step(step, SPEED).seconds)
