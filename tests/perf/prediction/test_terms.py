"""From a step's operations to its work, and from work to time at the vendors' rates: worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.catalogue import Gpu, catalogue, gpu
from stoker.perf.prediction.calibrated import calibration
from stoker.perf.prediction.terms import CARDS, GENERATIONS, LAUNCH_S, TERMS, Stack, unit_times, without
from stoker.perf.prediction.work_vector import AMOUNTS, work_of
from stoker.perf.study.tables.traced import traced_programs
from tests.perf.prediction.features import operation, product, training

V100 = gpu("V100-32GB-SXM")


def amounts(*operations: object) -> dict[str, float]:
    found = dict(zip(AMOUNTS, work_of(operations).tolist(), strict=True))  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if value}


def at_spec(card: Gpu, precision: str = "fp16", stack: Stack | None = None) -> dict[str, float]:
    times = work_of(training().operations) @ unit_times(card, precision, stack or Stack())
    return dict(zip((term.name for term in TERMS), times.tolist(), strict=True))


def test_a_product_is_its_flops_its_bytes_and_a_launch() -> None:
    flops = 2.0 * 4096**3
    assert amounts(product()) == {
        "matmul half": flops,
        "narrow matmul half": flops * 64 / 4096,
        "matmul bytes": 6.0 * 4096**2,
        "launches": 1.0,
        "compiled launches": 1.0,
    }


def test_a_convolution_is_the_product_that_it_is() -> None:
    """64 channels in 32 groups, 3x3: two channels a group, sides of 2 filters and 18 elements."""
    conv = operation("conv", dims=(8, 64, 64, 32, 9, 100), flops=1e9, eager_bytes=1e6, dtype="float32")
    assert amounts(conv) == {
        "conv single": 1e9,
        "narrow conv single": 1e9 * 64 / 2,
        "grouped conv single": 1e9 * (32 / 2 - 1),
        "conv bytes": 1e6,
        "launches": 1.0,
        "compiled launches": 1.0,
    }
    depthwise = operation("conv", dims=(8, 64, 64, 64, 9, 100), flops=1e9, eager_bytes=1e6)
    assert amounts(depthwise) == {"depthwise bytes": 1e6, "launches": 1.0, "compiled launches": 1.0}


def test_what_is_no_product_is_its_traffic() -> None:
    assert amounts(operation("norm", eager_bytes=5.0, fused_bytes=3.0, count=2)) == {
        "fused bytes": 3.0, "unfused bytes": 2.0, "launches": 2.0, "compiled launches": 1.0,
    }  # fmt: skip
    assert amounts(operation("rnn", dims=(100, 50, 8, 8, 4, 4), flops=7.0)) == {
        "rnn half": 7.0, "recurrences": 200.0, "launches": 1.0, "compiled launches": 1.0,
    }  # fmt: skip


def test_work_adds_up() -> None:
    operations = training().operations
    np.testing.assert_allclose(work_of(operations), work_of(operations[:3]) + work_of(operations[3:]))


def test_times_at_the_makers_rates() -> None:
    found = at_spec(V100)
    assert found["products in 16 bits"] == pytest.approx(6 * 2 * 4096**3 / 125e12)
    assert found["fused traffic"] == pytest.approx(4e9 / 900e9)
    assert found["unfused traffic, eager"] == found["unfused traffic"] == pytest.approx(2e9 / 900e9)
    compiled = at_spec(V100, stack=Stack(compiled=True))
    assert (compiled["unfused traffic"], compiled["unfused traffic, eager"]) == (found["unfused traffic"], 0)
    assert compiled["launches"] == pytest.approx((2 + 20 + 2 + 20 + 6) * LAUNCH_S)
    assert found["optimizer"] == pytest.approx(2e9 / 900e9)
    assert found["launches"] == pytest.approx((2 + 40 + 4 + 40 + 6) * LAUNCH_S)
    assert found["memory of volta"] == pytest.approx((4e9 + 2e9 / 2) / 900e9)
    assert found["memory of hopper"] == 0


def test_a_card_that_was_never_measured_is_the_mean_of_those_that_were() -> None:
    seen, unseen = at_spec(V100), at_spec(replace(V100, name="mine"))
    assert seen["card V100-32GB-SXM"] > 0
    assert seen["card H100-SXM"] == 0
    assert unseen["card H100-SXM"] == pytest.approx(seen["card V100-32GB-SXM"] / len(CARDS))
    assert unseen["memory of volta"] == seen["memory of volta"]


@pytest.mark.parametrize(
    ("generation", "stands_in"),
    [("hopper", "hopper"), ("blackwell", "hopper"), ("pascal", "volta"), ("maxwell", "volta"), ("other", "hopper")],
)
def test_a_generation_that_was_never_measured_is_the_nearest_one_that_was(generation: str, stands_in: str) -> None:
    found = at_spec(replace(V100, name="mine", generation=generation))
    shares = {name: found[f"memory of {name}"] for name in GENERATIONS}
    assert [name for name, seconds in shares.items() if seconds] == [stands_in]


def test_an_unmeasured_generation_gains_no_more_than_its_data_sheet_says() -> None:
    """B200 looked 3.3 times an H100, whose generation reaches less of its rates than the mean does."""
    old, new = gpu("H100-SXM"), gpu("B200-SXM")
    work = work_of([product()])[None]
    took = [float(calibration().seconds(work @ unit_times(card, "bf16", Stack()))[0]) for card in (old, new)]
    best = max(new.rates["bf16"] / old.rates["bf16"], new.memory_bandwidth / old.memory_bandwidth)
    assert 1.5 < took[0] / took[1] <= best


def test_a_calibration_without_a_generation_takes_the_nearest() -> None:
    found = calibration()
    names = [term.name for term in TERMS]
    left = dict(zip(names, without(found, ["hopper", "ada"]).coefficients, strict=True))
    kept = dict(zip(names, found.coefficients, strict=True))
    assert left["tensor cores of hopper"] == kept["tensor cores of ampere"]
    assert left["memory of ada"] == kept["memory of ampere-ga10x"]
    assert left["card H100-SXM"] == left["card RTX-4090"] != kept["card H100-SXM"]


def test_a_calibration_without_a_card_takes_the_mean_of_the_others() -> None:
    found = calibration()
    names = [term.name for term in TERMS]
    others = [names.index(f"card {name}") for name in CARDS if name != "A10"]
    left = without(found, ["A10", "bert"]).coefficients
    assert left[names.index("card A10")] == pytest.approx(found.coefficients[others].mean())
    assert (np.delete(left, names.index("card A10")) == np.delete(found.coefficients, names.index("card A10"))).all()


def test_no_published_program_is_slower_compiled_than_eager() -> None:
    """It was, by the fit: what frameworks differ in was taken for what compiling costs."""
    works = np.array([found.work for found in traced_programs().values()])
    for card, precision in (("A100-80GB-SXM", "fp16"), ("V100-32GB-SXM", "fp32")):
        eager, compiled = (
            calibration().seconds(works @ unit_times(gpu(card), precision, Stack(compiled=value)))
            for value in (False, True)
        )
        assert (compiled < eager).all()
        # Published of 163 models on an A100, with smaller batches than these: 1.21 in fp32, 1.51 in mixed precision
        # (pytorch.org/get-started/pytorch-2.0).
        assert 1.02 < np.median(eager / compiled) < 1.51


@given(
    name=st.sampled_from(sorted(catalogue())),
    field=st.sampled_from(["memory_bandwidth", "power_w"]),
    faster=st.floats(1.0, 10.0),
)
def test_more_of_anything_is_never_slower(name: str, field: str, faster: float) -> None:
    card = gpu(name)
    better = replace(card, **{field: getattr(card, field) * faster})
    work = work_of(training().operations)[None]

    def seconds(found: Gpu) -> float:
        return float(calibration().seconds(work @ unit_times(found, "fp32", Stack()))[0])

    assert seconds(better) <= seconds(card) * (1 + 1e-12)
    quicker = replace(card, rates={key: rate * faster for key, rate in card.rates.items()})
    assert seconds(quicker) <= seconds(card) * (1 + 1e-12)


def test_a_precision_that_the_card_lacks_is_named() -> None:
    with pytest.raises(ValueError, match="`precision` of V100-32GB-SXM must be one of fp32, fp16, got 'bf16'"):
        unit_times(V100, "bf16", Stack())
